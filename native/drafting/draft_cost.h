// What a step costs by the size of its tree, and how much a millisecond is worth: the prices by which drafters decide.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace medusa {

// A line fitted to the times of verify steps by nodes, by least squares in which old steps fade. It starts from a prior
// slope, and keeps it until steps of different sizes say otherwise. A step that takes much longer than the line says
// counts as one that takes twice as long.
class StepCost {
  public:
    // prior: cost of one more node, in steps of the root alone.
    explicit StepCost(double prior) : prior_(prior) {}

    void record(int nodes, double ms);
    // The cost of one more node, in steps of the root alone; above 0.
    double per_node() const;
    // Milliseconds for a step of the root alone; 0 until one is recorded.
    double root_ms() const;

  private:
    struct Line {
        double at_root, slope;
    };
    Line fit() const;

    double prior_;
    double count_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

// Sizes of dynamic trees, with root: the kernels take columns in tiles of eight; each size is measured separately.
inline constexpr int dynamic_sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32};

// llama.cpp reuses the graph of the step before if both numbers are the same.
struct TreeSize {
    int nodes = 1, leaves = 1;
    bool operator==(const TreeSize&) const = default;
};

// Milliseconds for a verify step, learned from past steps. Starts from `curve` (plain steps by number of nodes), or
// without one from a line whose slope is learned; each size learns how far off it is. What was learned holds for the
// number of threads that ran the steps; each number learns separately.
class DraftCost {
  public:
    DraftCost(const DraftCost&) = delete;
    DraftCost& operator=(const DraftCost&) = delete;
    // learns: false keeps the start throughout, at one millisecond per plain step.
    DraftCost(std::vector<std::pair<int, double>> curve, bool learns);

    // From now on, this many threads run the steps. A new number takes over from the previous one only what sizes cost
    // relative to each other.
    void runs_with(int threads);
    int threads() const { return threads_; }

    // Whether trees are decoded as if they had padded_size() nodes, with a sequence for each.
    void pads(bool on) { pads_ = on; }

    // A step with such a tree took `ms` to verify.
    void record(const TreeSize& size, double ms);
    double verify_ms(const TreeSize& size) const;
    // Cost of one more node, averaged over the existing sizes.
    double node_ms() const;
    // From the line through all steps: the cost of one more node, in steps of the root alone (above 0), and of such a
    // step in milliseconds (0: none was timed).
    double node_steps() const { return now_->line.per_node(); }
    double root_ms() const { return now_->line.root_ms(); }
    bool learns() const { return learns_; }

    // Filling level `depth` of a tree took `ms`.
    void record_level(int depth, double ms);
    // 0 until a step has been timed: there is nothing to weigh it against. Also 0 until a level was timed a few times:
    // one that looks too dear is never timed again, so a disturbed first time would count for good.
    double level_ms(int depth) const;

    // A whole step took `ms` and yielded `tokens`.
    void record_step(double ms, int tokens);
    double newest_step_ms() const { return now_->newest_step_ms; }
    // Tokens per millisecond that the newest steps yielded, but at least what plain decoding would: what a node's
    // probability must be worth for all steps together to yield the most tokens per time.
    double rate() const;

  private:
    struct Level {
        double ms = 0;
        int times = 0;
    };
    struct Learned {
        StepCost line;
        std::vector<double> correction;  // by slot
        double rebuild;                  // plain steps that a new graph costs
        double unit_ms = 0;              // milliseconds per plain step; 0: no step was timed
        int times = 0;                   // steps that were timed
        TreeSize last{0, 0};
        std::vector<Level> levels{};  // by depth, from 1
        double tokens = 0, ms = 0;    // over the newest steps; old ones fade
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
