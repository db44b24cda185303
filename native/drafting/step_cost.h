// What one more node costs, learned from the steps that were run.
#pragma once

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

}  // namespace medusa
