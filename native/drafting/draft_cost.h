// What a step costs by the size of its tree, and how much a millisecond is worth: the prices all drafters decide by.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "drafting/step_cost.h"

namespace medusa {

// Sizes of dynamic trees, root included: the kernels take columns in tiles of eight, and each size is measured apart.
inline constexpr int dynamic_sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32};

// What makes llama.cpp reuse the graph of the step before: as many nodes and as many leaves.
struct TreeSize {
    int nodes = 1, leaves = 1;
    bool operator==(const TreeSize&) const = default;
};

// Milliseconds of a verify step, from the steps that were run. Starts from `curve` (plain steps by number of nodes), or
// without one from a line whose slope is learned; each size learns by how much it is off.
class DraftCost {
  public:
    // learns: false keeps to the start throughout, with a millisecond a plain step.
    DraftCost(std::vector<std::pair<int, double>> curve, bool learns);

    // A step with such a tree took `ms` to verify.
    void record(const TreeSize& size, double ms);
    double verify_ms(const TreeSize& size) const;
    // Of one more node, on average over the sizes that are there.
    double node_ms() const;
    // The line through all steps: one more node, in steps of the root alone (above 0), and such a step in milliseconds
    // (0: none was timed).
    double node_steps() const { return line_.per_node(); }
    double root_ms() const { return line_.root_ms(); }
    bool learns() const { return learns_; }

    // Filling level `depth` of a tree took `ms`.
    void record_level(int depth, double ms);
    // 0 as long as no step was timed: there is nothing to weigh it against.
    double level_ms(int depth) const;

    // A whole step took `ms` and brought `tokens`.
    void record_step(double ms, int tokens);
    double newest_step_ms() const { return newest_step_ms_; }
    // Tokens per millisecond that the newest steps brought, and at least what plain decoding would: what a node's
    // probability has to be worth, if all steps together are to bring the most tokens per time.
    double rate() const;

  private:
    double base(int nodes) const;  // plain steps, before correction
    size_t slot(int nodes) const;

    std::vector<std::pair<int, double>> curve_;
    bool learns_;
    StepCost line_;
    double unit_ms_ = 0;              // of a plain step; 0: no step was timed
    std::vector<double> correction_;  // by slot
    double rebuild_;                  // plain steps that a new graph takes
    TreeSize last_{0, 0};
    std::vector<double> level_ms_;  // by depth, from 1
    double tokens_ = 0, ms_ = 0;    // of the newest steps, old ones fading
    double newest_step_ms_ = 0;
};

}  // namespace medusa
