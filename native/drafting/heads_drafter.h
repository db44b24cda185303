// Draft heads as a drafter: they fill the shape of a tree, level by level.
#pragma once

#include <memory>
#include <vector>

#include "drafting/level_source.h"

namespace medusa {

class HeadsDrafter final : public Drafter {
  public:
    // ranks: the most that the source can fill.
    HeadsDrafter(std::unique_ptr<LevelSource> source, int ranks) : source_(std::move(source)), ranks_(ranks) {}

    DrafterNeeds needs() const override { return source_->needs(); }
    void begin(std::span<const Token> prompt) override { source_->prompt(prompt); }
    void committed(int position, Token token, std::span<const float> state) override {
        source_->committed(position, token, state);
    }
    int resumes_at(int same) const override { return source_->resumes_at(same); }
    void rolled_back(int position, int same) override { source_->rolled_back(position, same); }
    void verified(const Verified& step) override { source_->verified(step); }
    void save(StateWriter& out) override { source_->save(out); }
    void restore(StateReader& in) override { source_->restore(in); }
    // The shape must not be deeper than the source.
    void draft(const DraftInput& input, Draft& out) override;

  private:
    int ask(const Tree& shape, int first, int last, const Drawing* drawing, const Draft& out);
    void fill_level(const Tree& shape, int first, int last, int ranks, Drawing* drawing, Draft& out);

    std::unique_ptr<LevelSource> source_;
    int ranks_;
    LevelDrafts drafts_;
    std::vector<Token> paths_;
    std::vector<int> row_of_;  // by node with children: its row among the paths of its level
};

}  // namespace medusa
