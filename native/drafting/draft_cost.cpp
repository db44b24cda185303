#include "drafting/draft_cost.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace medusa {
namespace {

constexpr double first_node_cost = 0.15, first_rebuild = 0.05;  // plain steps, before any was measured
constexpr double unit_weight = 0.1, correction_weight = 0.05, rebuild_weight = 0.05, level_weight = 0.1;
constexpr double disturbed = 1.5;       // a step that is off by more says nothing of its size
constexpr double disturbed_level = 4;   // a level counts as so many usual ones at most
constexpr double keep = 0.98;           // a step's rate fades to one half after 34 later ones
constexpr double rate_prior_steps = 4;  // plain steps that the rate starts from

}  // namespace

DraftCost::DraftCost(std::vector<std::pair<int, double>> curve, bool learns)
    : curve_(std::move(curve)),
      learns_(learns),
      line_(first_node_cost),
      correction_(std::size(dynamic_sizes), 1.0),
      rebuild_(learns ? first_rebuild : 0) {
    std::sort(curve_.begin(), curve_.end());
    if (!learns) unit_ms_ = 1;
}

// The smallest of the sizes that holds so many nodes.
size_t DraftCost::slot(int nodes) const {
    const auto at = std::lower_bound(std::begin(dynamic_sizes), std::end(dynamic_sizes), nodes);
    return std::min<size_t>(at - std::begin(dynamic_sizes), correction_.size() - 1);
}

// Between measured sizes on the line through them, beyond them with the slope of the last two.
double DraftCost::base(int nodes) const {
    if (curve_.size() < 2) return 1 + line_.per_node() * (nodes - 1);
    auto after = std::lower_bound(curve_.begin(), curve_.end(), std::pair(nodes, 0.0));
    after = std::clamp(after, curve_.begin() + 1, curve_.end() - 1);
    const auto [n0, y0] = *(after - 1);
    const auto [n1, y1] = *after;
    return std::max(y0 + (y1 - y0) * (nodes - n0) / (n1 - n0), 1e-3);
}

void DraftCost::record(const TreeSize& size, double ms) {
    if (!learns_ || !(ms > 0)) return;
    const bool rebuilt = size != last_;
    last_ = size;
    line_.record(size.nodes, ms);
    double& correction = correction_[slot(size.nodes)];
    const double same = base(size.nodes) * correction;
    if (unit_ms_ == 0) unit_ms_ = ms / (same + rebuild_);
    const double off = std::log(ms / (unit_ms_ * (same + (rebuilt ? rebuild_ : 0))));
    unit_ms_ *= std::exp(unit_weight * std::clamp(off, -std::log(disturbed), std::log(disturbed)));
    if (std::abs(off) > std::log(disturbed)) return;
    if (rebuilt) {
        rebuild_ = std::max(rebuild_ + rebuild_weight * (ms / unit_ms_ - same - rebuild_), 0.0);
    } else {
        correction *= std::exp(correction_weight * off);
    }
}

double DraftCost::verify_ms(const TreeSize& size) const {
    const double steps = base(size.nodes) * correction_[slot(size.nodes)];
    return (unit_ms_ > 0 ? unit_ms_ : 1) * (steps + (size != last_ ? rebuild_ : 0));
}

double DraftCost::node_ms() const {
    const int most = curve_.size() < 2 ? *std::prev(std::end(dynamic_sizes)) : curve_.back().first;
    return (unit_ms_ > 0 ? unit_ms_ : 1) * std::max(base(most) - base(1), 1e-3) / (most - 1);
}

void DraftCost::record_level(int depth, double ms) {
    if (!learns_) return;
    const auto level = static_cast<size_t>(depth - 1);
    if (level_ms_.size() <= level) level_ms_.resize(level + 1, ms);
    level_ms_[level] += level_weight * (std::min(ms, disturbed_level * level_ms_[level]) - level_ms_[level]);
}

double DraftCost::level_ms(int depth) const {
    const auto level = static_cast<size_t>(depth - 1);
    return unit_ms_ > 0 && level < level_ms_.size() ? level_ms_[level] : 0;
}

void DraftCost::record_step(double ms, int tokens) {
    if (!learns_) return;
    newest_step_ms_ = ms;
    tokens_ = keep * tokens_ + tokens;
    ms_ = keep * ms_ + ms;
}

double DraftCost::rate() const {
    const double plain_ms = (unit_ms_ > 0 ? unit_ms_ : 1) * base(1) * correction_[0];
    const double rate = (tokens_ + rate_prior_steps) / (ms_ + rate_prior_steps * plain_ms);
    return std::max(rate, 1 / plain_ms);
}

}  // namespace medusa
