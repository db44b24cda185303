#include "drafting/watchdog.h"

#include <algorithm>

namespace medusa {

void RecentValues::push(double value) {
    if (values_.size() < capacity_) {
        values_.push_back(value);
    } else {
        values_[oldest_] = value;
        oldest_ = (oldest_ + 1) % capacity_;
    }
}

void RecentValues::clear() {
    values_.clear();
    oldest_ = 0;
}

double RecentValues::median() const {
    std::vector<double> sorted = values_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
}

double RecentValues::sum(double cap) const {
    double total = 0;
    for (const double value : values_) total += std::min(value, cap);
    return total;
}

// A tree never costs less than its root alone: timings that say so come from a slow spell that has passed.
double Watchdog::plain_ms() const {
    const double plain = plain_.median();
    return run_ms_.size() ? std::min(plain, run_ms_.median()) : plain;
}

double Watchdog::account_ms() const {
    return loss_share * tokens_ * plain_ms() + balance_ms_ + carried_ms_;
}

double Watchdog::step_loss_ms() const {
    const double loss = step_cost_.size() ? std::max(step_cost_.median() - 1.0, 0.0) : unknown_loss;
    return loss * plain_ms();
}

bool Watchdog::losing() const {
    if (run_ms_.size() < judged) return false;
    return run_ms_.sum(disturbed * run_ms_.median()) > run_tokens_.sum() * plain_ms();
}

void Watchdog::begin_generation() {
    tokens_ = balance_ms_ = carried_ms_ = 0;
    first_step_ = true;
    if (!speculating_) return;
    carried_ms_ = std::clamp(session_balance_ms_, 0.0, carried_steps * plain_ms());
    if (carried_ms_ < step_loss_ms()) stop();
}

bool Watchdog::speculate() {
    if (plain_.size() < warm_up) return false;
    if (speculating_) {
        if (std::min(account_ms(), stake_ms_) < step_loss_ms() || losing()) fail();
        return speculating_ && plain_left_ == 0;
    }
    const double needed = step_loss_ms() * (step_cost_.size() ? trial_steps : 1);
    if (wait_ > 0 || account_ms() < needed) return false;
    speculating_ = true;
    stake_ms_ = std::min(account_ms(), std::max(stake_steps * step_loss_ms(), least_stake * plain_ms()));
    run_left_ = next_run_ = first_run;
    return true;
}

void Watchdog::stop() {
    speculating_ = false;
    plain_left_ = 0;
    run_ms_.clear();
    run_tokens_.clear();
}

void Watchdog::fail() {
    stop();
    wait_ = next_wait_;
    next_wait_ = std::min(2 * next_wait_, longest_wait);
}

void Watchdog::pay(double gain_ms) {
    balance_ms_ += gain_ms;
    session_balance_ms_ += gain_ms;
    stake_ms_ += gain_ms;
}

void Watchdog::report(bool speculative, double ms, int tokens) {
    const bool switched = first_step_ || speculative != was_speculative_;
    if (speculative) {
        report_speculative(ms, tokens);
    } else {
        report_plain(ms, switched);
    }
    tokens_ += tokens;
    was_speculative_ = speculative;
    first_step_ = false;
}

void Watchdog::report_plain(double ms, bool switched) {
    if (plain_left_ > 0) --plain_left_;
    if (!speculating_ && wait_ > 0) --wait_;
    if (!switched) {
        plain_.push(ms);
    } else if (!first_step_ && plain_.size()) {
        // The graph was rebuilt: that is the cost of switching back.
        pay(-std::max(std::min(ms, disturbed_at_first * plain_ms()) - plain_ms(), 0.0));
    }
}

void Watchdog::report_speculative(double ms, int tokens) {
    const double plain = plain_ms();
    const double cap = run_ms_.size() >= 4 ? disturbed * run_ms_.median() : disturbed_at_first * plain;
    run_ms_.push(ms);
    run_tokens_.push(tokens);
    step_cost_.push(std::min(ms, cap) / plain_ms());
    pay(tokens * plain_ms() - std::min(ms, cap));
    if (run_ms_.size() >= judged && !losing()) next_wait_ = first_wait;
    if (--run_left_ <= 0) {
        next_run_ = std::min(2 * next_run_, longest_run);
        run_left_ = next_run_;
        plain_left_ = plain_run;
    }
}

}  // namespace medusa
