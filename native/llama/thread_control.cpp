#include "llama/thread_control.h"

#include <algorithm>
#include <cmath>

namespace medusa {
namespace {

constexpr double newest_weight = 0.2;
constexpr double disturbed = 2;         // a pass counts as this many usual ones at most
constexpr double waiting_span_ms = 60;  // over which waiting threads are averaged
constexpr int few_passes = 6;           // before any comparison, and in a trial
constexpr double trial_ms = 40;         // a thread that has slept gets to run at first, whatever else wants to
constexpr int most_trial_passes = 32;
constexpr double hopeless_passes = 4;   // a trial that has lost this many ends,
constexpr int clear_passes = 3;         // or, after this many,
constexpr double clearly_worse = 1.15;  // one whose passes take this much longer
constexpr double unknown_patience_ms = 30, least_patience_ms = 10, patience_passes = 2;
constexpr int most_answer_rows = 64;  // larger passes are parts of prompts
constexpr double settling_ms = 300;
constexpr double lost_share = 0.005;

}  // namespace

void ThreadControl::Times::record(int rows, double ms) {
    const auto [at, is_new] = ms_.emplace(rows, ms);
    if (!is_new) at->second += newest_weight * (std::min(ms, disturbed * at->second) - at->second);
}

std::optional<double> ThreadControl::Times::of(int rows) const {
    const auto at = ms_.find(rows);
    return at == ms_.end() ? std::nullopt : std::optional(at->second);
}

void ThreadControl::Turn::failed(double now, double lost_ms) {
    paid = now + lost_ms / lost_share;
    due = std::max(now + wait, paid);
    wait = std::min(2 * wait, longest_wait);
}

void ThreadControl::Turn::start(double now, double after) {
    wait = first_wait;
    due = std::max(now + after, paid);
}

ThreadControl::ThreadControl(int most, int start) : most_(most), count_(std::clamp(start, 1, most)) {
    blind_.start(0);
    other_.start(0);
}

double ThreadControl::patience_ms(int rows) const {
    const auto known = times_.of(rows);
    if (!known || rows > most_answer_rows) return unknown_patience_ms;
    // A trial of more threads has failed if it takes longer than fewer threads did.
    return (trial_ ? 1 : patience_passes) * *known + least_patience_ms;
}

void ThreadControl::hold() {
    held_ = true;
    trial_.reset();
}

void ThreadControl::set_room(double cores) {
    const bool had_room = !room_ || more() > count_;
    room_ = cores;
    if (!had_room && more() > count_) more_.start(now_, 0);
}

void ThreadControl::report(const TimedPass& pass) {
    now_ += pass.ms;
    if (pass.threads != threads()) return;
    if (pass.given_up) {
        give_up(pass);
    } else if (trial_) {
        continue_trial(pass);
    } else {
        learn(pass);
        consider_trial(pass.rows);
    }
}

void ThreadControl::learn(const TimedPass& pass) {
    ++passes_;
    times_.record(pass.rows, pass.ms);
    waiting_ += (1 - std::exp(-pass.ms / waiting_span_ms)) * (pass.waiting - waiting_);
}

void ThreadControl::give_up(const TimedPass& pass) {
    if (trial_) {
        trial_->lost += pass.ms;
        end_trial(false);
        return;
    }
    if (now_ < settled_) {
        more_.failed(now_, pass.ms);
    } else {
        more_.start(now_);
    }
    blind_.start(now_);
    move_to(fewer_than_waiting(pass.waiting), Reason::others);
}

// A thread that shares its core with another program runs half the time.
int ThreadControl::fewer_than_waiting(double waiting) const {
    return std::max(count_ - std::max(static_cast<int>(std::lround(waiting)), 1), 1);
}

// As many as there is room for; one more if nothing is known.
int ThreadControl::more() const {
    if (!room_) return std::min(count_ + 1, most_);
    const int fitting = std::min(static_cast<int>(*room_ + 1 - nearly_a_core), most_);
    return one_more_ ? std::min(fitting, count_ + 1) : fitting;
}

// Alternates between one less and half as many: with cores of two speeds, counts in between may be worse than either.
int ThreadControl::other() {
    half_next_ = !half_next_;
    return half_next_ || count_ == 2 ? count_ - 1 : (count_ + 1) / 2;
}

void ThreadControl::consider_trial(int rows) {
    if (passes_ < few_passes) return;
    if (count_ > 1 && waiting_ > too_many_waiting && now_ >= crowded_.due) {
        try_count(fewer_than_waiting(waiting_), crowded_);
    } else if (held_) {
        return;
    } else if (rows > most_answer_rows && more() <= count_) {
        return;  // a trial takes seconds of a prompt: only if it promises something
    } else if (more() > count_ && now_ >= more_.due) {
        try_count(more(), more_);
    } else if (count_ < most_ && now_ >= blind_.due) {
        try_count(count_ + 1, blind_);
    } else if (count_ > 1 && now_ >= other_.due) {
        try_count(other(), other_);
    }
}

void ThreadControl::try_count(int threads, Turn& turn) {
    trial_.emplace(Trial{threads, &turn});
}

void ThreadControl::continue_trial(const TimedPass& pass) {
    Trial& t = *trial_;
    t.times.record(pass.rows, pass.ms);
    ++t.passes;
    if (const auto expected = times_.of(pass.rows)) {
        t.lost += pass.ms - *expected;
        // The first pass pays for the change.
        if (t.passes > 1) {
            ++t.compared;
            t.ms += pass.ms;
            t.expected += *expected;
        }
        const bool clear = t.compared >= clear_passes && t.ms > clearly_worse * t.expected;
        if (clear || t.lost > hopeless_passes * *expected) return end_trial(false);
    } else if (pass.rows > most_answer_rows) {
        return end_trial(false);  // a prompt, with nothing to compare it to
    }
    const bool enough = t.compared >= few_passes && t.ms >= trial_ms;
    if (enough || t.passes >= most_trial_passes) end_trial(t.ms < (1 - least_gain) * t.expected);
}

void ThreadControl::end_trial(bool better) {
    const Trial trial = *trial_;
    trial_.reset();
    const bool raised = trial.threads > count_;
    one_more_ = raised && !better;
    if (!better) return trial.turn->failed(now_, std::max(trial.lost, 0.0));
    // A raised count is not trusted at once: its turn waits longer if it has to be lowered soon.
    if (raised) settled_ = now_ + settling_ms;
    if (!raised) more_.start(now_);
    if (trial.turn != &more_) trial.turn->start(now_);
    move_to(trial.threads, trial.turn == &other_ ? Reason::slower : Reason::others);
    times_ = trial.times;
}

void ThreadControl::move_to(int count, Reason reason) {
    if (count < count_) reason_ = reason;
    count_ = count;
    times_.clear();
    passes_ = 0;
    waiting_ = 0;
}

}  // namespace medusa
