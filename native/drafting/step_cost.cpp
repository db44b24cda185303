#include "drafting/step_cost.h"

#include <algorithm>

namespace medusa {
namespace {

constexpr double keep = 0.98;        // a step fades to one half after 34 later ones
constexpr double prior_weight = 5;   // as much as five steps of two nodes
constexpr double least_cost = 0.01;  // noise can tilt the line downwards

}  // namespace

void StepCost::record(int nodes, double ms) {
    const double x = nodes - 1;
    count_ = keep * count_ + 1;
    x_ = keep * x_ + x;
    y_ = keep * y_ + ms;
    xx_ = keep * xx_ + x * x;
    xy_ = keep * xy_ + x * ms;
}

// Minimises sum (a + b x - y)^2 + prior_weight (b - prior a)^2.
StepCost::Line StepCost::fit() const {
    const double aa = count_ + prior_weight * prior_ * prior_, ab = x_ - prior_weight * prior_, bb = xx_ + prior_weight;
    const double determinant = aa * bb - ab * ab;
    return {(y_ * bb - xy_ * ab) / determinant, (xy_ * aa - y_ * ab) / determinant};
}

double StepCost::per_node() const {
    const Line line = fit();
    if (count_ == 0 || line.at_root <= 0) return prior_;
    return std::max(line.slope / line.at_root, least_cost);
}

double StepCost::root_ms() const {
    return std::max(fit().at_root, 0.0);
}

}  // namespace medusa
