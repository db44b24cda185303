// Draft heads and recycled tokens in one tree.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "drafting/level_source.h"

namespace medusa {

// At each node the likeliest tokens of both, each token once; the heads, as far as they reach, know best what theirs
// are worth.
class MergedLevels final : public LevelSource {
  public:
    MergedLevels(std::unique_ptr<LevelSource> heads, std::unique_ptr<LevelSource> recycled)
        : heads_(std::move(heads)), recycled_(std::move(recycled)) {}

    DrafterNeeds needs() const override {
        DrafterNeeds needs = heads_->needs();
        needs.rows = true;
        return needs;
    }
    bool is_free() const override { return heads_->is_free(); }
    int depth() const override { return std::max(heads_->depth(), recycled_->depth()); }
    void prompt(std::span<const Token> prompt) override { heads_->prompt(prompt); }
    void committed(int position, std::span<const float> state) override { heads_->committed(position, state); }
    void rolled_back(int position) override { heads_->rolled_back(position); }
    void verified(const Verified& step) override { recycled_->verified(step); }
    void begin(const DraftInput& input) override {
        asks_heads_ = true;
        heads_->begin(input);
        recycled_->begin(input);
    }
    bool begin_free(const DraftInput& input) override {
        asks_heads_ = heads_->begin_free(input);
        recycled_->begin(input);
        return true;
    }
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;

  private:
    void merge_row(size_t of_heads, size_t of_recycled, size_t width, LevelDrafts& out) const;

    std::unique_ptr<LevelSource> heads_, recycled_;
    bool asks_heads_ = true;  // in this step
    LevelDrafts of_heads_, of_recycled_;
    std::vector<Token> reached_;  // paths that the heads are asked below
    std::vector<bool> is_reached_;
};

}  // namespace medusa
