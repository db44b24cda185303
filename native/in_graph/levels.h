// Levels of a tree from what the model's own graph drafted, or, if it did not, from the heads on the host.
#pragma once

#include <memory>

#include "drafting/level_source.h"
#include "heads/levels.h"
#include "in_graph/step_tail.h"

namespace medusa::in_graph {

class InGraphLevels final : public LevelSource {
  public:
    InGraphLevels(std::shared_ptr<const Heads> heads, std::shared_ptr<StepTail> tail,
                  std::unique_ptr<HeadsLevels> on_host)
        : heads_(std::move(heads)), tail_(std::move(tail)), on_host_(std::move(on_host)) {}

    DrafterNeeds needs() const override { return tail_->attached() ? DrafterNeeds() : on_host_->needs(); }
    // In the graph, levels are there before they are asked for.
    bool is_free() const override { return tail_->attached() && !draws_; }
    bool begin_free(const DraftInput& input) override;
    void rest() override;
    int depth() const override { return on_host_->depth(); }
    void committed(int position, Token token, std::span<const float> state) override {
        on_host_->committed(position, token, state);
    }
    void rolled_back(int position, int same) override;
    void save(StateWriter& out) override { on_host_->save(out); }
    void restore(StateReader& in) override { on_host_->restore(in); }
    void begin(const DraftInput& input) override;
    bool reaches(std::span<const Token> path) const override;
    // In the graph, for fixed trees: in the order of the nodes; probabilities are not known and set to 1.
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;

  private:
    void read_columns(Token root);
    size_t column_of(int depth, std::span<const Token> path) const;

    std::shared_ptr<const Heads> heads_;
    std::shared_ptr<StepTail> tail_;
    std::unique_ptr<HeadsLevels> on_host_;
    bool draws_ = false;  // in this step the host draws, from what the levels say
    // For grown trees, by depth: the paths of the columns that heads were asked for, from the root on.
    std::vector<std::vector<std::vector<Token>>> columns_;
};

}  // namespace medusa::in_graph
