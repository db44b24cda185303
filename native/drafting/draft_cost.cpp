#include "drafting/draft_cost.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "decoding/in_graph.h"

namespace medusa {
namespace {

constexpr double keep = 0.98;                                   // a step's weight falls to one half after 34 later ones
constexpr double prior_weight = 5;                              // counts as much as five steps of two nodes
constexpr double least_cost = 0.01;                             // noise can tilt the line downwards
constexpr double first_node_cost = 0.15, first_rebuild = 0.05;  // in plain steps, before any was measured
constexpr double unit_weight = 0.1, correction_weight = 0.05, rebuild_weight = 0.05, level_weight = 0.1;
constexpr double disturbed = 1.5;       // a step that is off by more says nothing about its size
constexpr double disturbed_line = 2;    // a step counts as this many of what the line expects at most
constexpr double disturbed_level = 4;   // a level counts as this many usual ones at most
constexpr int young_steps = 16;         // the first ones, in which a fast step is believed
constexpr int doubted_levels = 3;       // the first ones: the best counts, and only after that many
constexpr double rate_prior_steps = 4;  // plain steps that the rate starts from

}  // namespace

void StepCost::record(int nodes, double ms) {
    const double x = nodes - 1;
    if (root_ms() > 0) ms = std::min(ms, disturbed_line * root_ms() * (1 + per_node() * x));
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
    return count_ > 0 ? std::max(fit().at_root, 0.0) : 0;
}

DraftCost::DraftCost(std::vector<std::pair<int, double>> curve, bool learns)
    : curve_(std::move(curve)),
      learns_(learns),
      now_(&learned_
                .emplace(threads_, Learned{StepCost(first_node_cost), std::vector(std::size(dynamic_sizes), 1.0),
                                           learns ? first_rebuild : 0})
                .first->second) {
    std::sort(curve_.begin(), curve_.end());
    if (!learns) now_->unit_ms = 1;
}

void DraftCost::runs_with(int threads) {
    if (!learns_ || threads == threads_) return;
    threads_ = threads;
    now_ = &learned_.try_emplace(threads, Learned{StepCost(first_node_cost), now_->correction, now_->rebuild})
                .first->second;
}

// The smallest of the sizes that holds this many nodes.
size_t DraftCost::slot(int nodes) const {
    const auto at = std::lower_bound(std::begin(dynamic_sizes), std::end(dynamic_sizes), nodes);
    return std::min<size_t>(at - std::begin(dynamic_sizes), now_->correction.size() - 1);
}

// Between measured sizes, on the line through them; beyond them, with the slope of the last two.
double DraftCost::base(int nodes) const {
    if (curve_.size() < 2) return 1 + now_->line.per_node() * (nodes - 1);
    auto after = std::lower_bound(curve_.begin(), curve_.end(), std::pair(nodes, 0.0));
    after = std::clamp(after, curve_.begin() + 1, curve_.end() - 1);
    const auto [n0, y0] = *(after - 1);
    const auto [n1, y1] = *after;
    return std::max(y0 + (y1 - y0) * (nodes - n0) / (n1 - n0), 1e-3);
}

TreeSize DraftCost::decoded(const TreeSize& size) const {
    if (!pads_) return size;
    const int nodes = padded_size(size.nodes);
    return {nodes, nodes};
}

void DraftCost::record(const TreeSize& verified, double ms) {
    if (!learns_ || !(ms > 0)) return;
    const TreeSize size = decoded(verified);
    Learned& l = *now_;
    const bool rebuilt = size != l.last;
    l.last = size;
    double& correction = l.correction[slot(size.nodes)];
    const double same = base(size.nodes) * correction;
    // The first step is not judged by others, and pays for what later ones reuse.
    if (l.times == 0) {
        l.times = 1;
        l.unit_ms = ms / (same + l.rebuild);
        return;
    }
    l.line.record(size.nodes, ms);
    const double off = std::log(ms / (l.unit_ms * (same + (rebuilt ? l.rebuild : 0))));
    // What the unit starts from may have been a disturbed step.
    const double weight = std::max(unit_weight, 1.0 / ++l.times);
    const double fastest = l.times <= young_steps ? -std::numeric_limits<double>::infinity() : -std::log(disturbed);
    l.unit_ms *= std::exp(weight * std::clamp(off, fastest, std::log(disturbed)));
    if (std::abs(off) > std::log(disturbed)) return;
    if (rebuilt) {
        l.rebuild = std::max(l.rebuild + rebuild_weight * (ms / l.unit_ms - same - l.rebuild), 0.0);
    } else {
        correction *= std::exp(correction_weight * off);
    }
}

double DraftCost::verify_ms(const TreeSize& wanted) const {
    const TreeSize size = decoded(wanted);
    const double steps = base(size.nodes) * now_->correction[slot(size.nodes)];
    return unit() * (steps + (size != now_->last ? now_->rebuild : 0));
}

double DraftCost::node_ms() const {
    const int most = curve_.size() < 2 ? *std::prev(std::end(dynamic_sizes)) : curve_.back().first;
    return unit() * std::max(base(most) - base(1), 1e-3) / (most - 1);
}

void DraftCost::record_level(int depth, double ms) {
    if (!learns_) return;
    const auto level = static_cast<size_t>(depth - 1);
    if (now_->levels.size() <= level) now_->levels.resize(level + 1);
    Level& known = now_->levels[level];
    if (++known.times <= doubted_levels) {
        known.ms = known.times == 1 ? ms : std::min(ms, known.ms);
    } else {
        known.ms += level_weight * (std::min(ms, disturbed_level * known.ms) - known.ms);
    }
}

double DraftCost::level_ms(int depth) const {
    const auto level = static_cast<size_t>(depth - 1);
    if (now_->unit_ms == 0 || level >= now_->levels.size()) return 0;
    const Level& known = now_->levels[level];
    return known.times >= doubted_levels ? known.ms : 0;
}

void DraftCost::record_step(double ms, int tokens) {
    if (!learns_) return;
    now_->newest_step_ms = ms;
    now_->tokens = keep * now_->tokens + tokens;
    now_->ms = keep * now_->ms + ms;
}

double DraftCost::rate() const {
    const double plain_ms = unit() * base(1) * now_->correction[0];
    const double rate = (now_->tokens + rate_prior_steps) / (now_->ms + rate_prior_steps * plain_ms);
    return std::max(rate, 1 / plain_ms);
}

}  // namespace medusa
