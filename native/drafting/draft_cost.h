// What a step costs by the size of its tree, and how much a millisecond is worth: the prices all drafters decide by.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace medusa {

// A line through the times of verify steps over their nodes, by least squares in which old steps fade. It starts from a
// prior slope, and keeps to it until steps of different sizes say otherwise.
class StepCost {
  public:
    // prior: cost of one more node, in steps of the root alone.
    explicit StepCost(double prior) : prior_(prior) {}

    void record(int nodes, double ms);
    // Of one more node, in steps of the root alone; above 0.
    double per_node() const;
    // Milliseconds of a step of the root alone; 0 as long as none was recorded.
    double root_ms() const;

  private:
    struct Line {
        double at_root, slope;
    };
    Line fit() const;

    double prior_;
    double count_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

// Sizes of dynamic trees, root included: the kernels take columns in tiles of eight, and each size is measured apart.
inline constexpr int dynamic_sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32};

// What makes llama.cpp reuse the graph of the step before: as many nodes and as many leaves.
struct TreeSize {
    int nodes = 1, leaves = 1;
    bool operator==(const TreeSize&) const = default;
};

// Milliseconds of a verify step, from the steps that were run. Starts from `curve` (plain steps by number of nodes), or
// without one from a line whose slope is learned; each size learns by how much it is off. What was learned holds for
// the number of threads that ran the steps; each number learns for itself.
class DraftCost {
  public:
    DraftCost(const DraftCost&) = delete;
    DraftCost& operator=(const DraftCost&) = delete;
    // learns: false keeps to the start throughout, with a millisecond a plain step.
    DraftCost(std::vector<std::pair<int, double>> curve, bool learns);

    // So many threads run the steps from here on. A number that is new knows of the one before only what sizes cost
    // beside each other.
    void runs_with(int threads);
    int threads() const { return threads_; }

    // Whether trees are decoded as if they had padded_size() nodes, with a sequence for each.
    void pads(bool on) { pads_ = on; }

    // A step with such a tree took `ms` to verify.
    void record(const TreeSize& size, double ms);
    double verify_ms(const TreeSize& size) const;
    // Of one more node, on average over the sizes that are there.
    double node_ms() const;
    // The line through all steps: one more node, in steps of the root alone (above 0), and such a step in milliseconds
    // (0: none was timed).
    double node_steps() const { return now_->line.per_node(); }
    double root_ms() const { return now_->line.root_ms(); }
    bool learns() const { return learns_; }

    // Filling level `depth` of a tree took `ms`.
    void record_level(int depth, double ms);
    // 0 as long as no step was timed: there is nothing to weigh it against.
    double level_ms(int depth) const;

    // A whole step took `ms` and brought `tokens`.
    void record_step(double ms, int tokens);
    double newest_step_ms() const { return now_->newest_step_ms; }
    // Tokens per millisecond that the newest steps brought, and at least what plain decoding would: what a node's
    // probability has to be worth, if all steps together are to bring the most tokens per time.
    double rate() const;

  private:
    struct Learned {
        StepCost line;
        std::vector<double> correction;  // by slot
        double rebuild;                  // plain steps that a new graph takes
        double unit_ms = 0;              // of a plain step; 0: no step was timed
        TreeSize last{0, 0};
        std::vector<double> level_ms{};  // by depth, from 1
        double tokens = 0, ms = 0;       // of the newest steps, old ones fading
        double newest_step_ms = 0;
    };
    TreeSize decoded(const TreeSize& size) const;
    double unit() const { return now_->unit_ms > 0 ? now_->unit_ms : 1; }
    double base(int nodes) const;  // plain steps, before correction
    size_t slot(int nodes) const;

    std::vector<std::pair<int, double>> curve_;
    bool learns_, pads_ = false;
    int threads_ = 0;
    std::map<int, Learned> learned_;  // by threads
    Learned* now_;
};

}  // namespace medusa
