// Draft heads as a drafter that grows a tree of its own in each step.
#pragma once

#include <memory>

#include "drafting/dynamic_tree.h"

namespace medusa {

// What is known before the first step; empty: learned from scratch.
struct DynamicTreeStart {
    HeadCalibration::Table calibration{};
    std::vector<std::pair<int, double>> curve{};  // plain steps by number of nodes
    bool learns_cost = true;                      // false: the curve holds throughout, so that runs repeat
    int max_nodes = Tree::max_size;               // of a step, root included
};

// Asks the heads less and less often while what they draft does not pay for asking them. Learns, from the tokens that
// come and the times that steps take, what the heads' probabilities and a tree's nodes are worth.
class DynamicTreeDrafter final : public Drafter {
  public:
    // cost: what this session's steps cost; the drafter adds what its levels take.
    DynamicTreeDrafter(std::unique_ptr<LevelSource> source, const DynamicTreeParams& params,
                       const HeadCalibration::Table& calibration, std::shared_ptr<DraftCost> cost);

    // What a tree may come to, whatever it is grown from.
    static TreeBounds bounds(const DynamicTreeParams& params) { return {params.max_nodes - 1, params.max_nodes}; }

    DrafterNeeds needs() const override { return source_->needs(); }
    bool joins_chain() const override { return true; }
    void begin(std::span<const Token> prompt) override;
    void committed(int position, std::span<const float> state) override { source_->committed(position, state); }
    void rolled_back(int position) override { source_->rolled_back(position); }
    void verified(const Verified& step) override { source_->verified(step); }
    void draft(const DraftInput& input, Draft& out) override;
    const HeadCalibration::Table& calibration() const { return calibrations_[0].table(); }

  private:
    void note_gain(double tokens, int longest);

    std::unique_ptr<LevelSource> source_;
    Calibrations calibrations_;
    std::shared_ptr<DraftCost> cost_;
    DynamicTree tree_;
    size_t known_ = 0;   // tokens of the context that the newest tree was grown at the end of; 0: none
    double gain_ = 0;    // tokens that asking the heads gained a step, old steps fading
    int fruitless_ = 0;  // steps in a row without a gain
    int pause_ = 0, next_pause_ = first_pause;  // steps without asking the heads

    static constexpr double gain_weight = 0.1;
    // Plain steps that drafts take which no clock sees: made ahead, within a pass of the model.
    static constexpr double free_worth = 0.05;
    static constexpr int patience = 4, first_pause = 4, longest_pause = 64, longest_free_pause = 16;
};

}  // namespace medusa
