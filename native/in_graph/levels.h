// Levels of a tree from what the model's own graph drafted, or, while it does not, from the heads on the host.
#pragma once

#include <memory>

#include "drafting/level_source.h"
#include "heads/levels.h"
#include "in_graph/step_tail.h"

namespace medusa::in_graph {

class InGraphLevels final : public LevelSource {
  public:
    InGraphLevels(std::shared_ptr<const Heads> heads, std::shared_ptr<StepTail> tail,
                  std::unique_ptr<LevelSource> on_host)
        : heads_(std::move(heads)), tail_(std::move(tail)), on_host_(std::move(on_host)) {}

    DrafterNeeds needs() const override { return tail_->attached() ? DrafterNeeds() : on_host_->needs(); }
    int depth() const override { return on_host_->depth(); }
    void committed(int position, std::span<const float> state) override { on_host_->committed(position, state); }
    void rolled_back(int position) override;
    void begin(const DraftInput& input) override;
    // In the graph: of the tail's tree, in the order of its nodes. Probabilities are not known there: 1.
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;

  private:
    std::shared_ptr<const Heads> heads_;
    std::shared_ptr<StepTail> tail_;
    std::unique_ptr<LevelSource> on_host_;
};

}  // namespace medusa::in_graph
