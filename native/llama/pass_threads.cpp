#include "llama/pass_threads.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/platform.h"

namespace medusa {
namespace {

constexpr double forever = std::numeric_limits<double>::infinity();
constexpr double more_patience_ms = 10;
constexpr int most_repeats = 2;  // per pass

// What the newest pass of any context found best for the machine: other contexts begin with it. 0: none yet.
std::atomic<int> found_best = 0;

// Cores that other programs leave free.
double free_cores(double others) {
    static const int cores = physical_cores();
    return cores - others;
}

}  // namespace

// As many as there are cores left by other programs.
ThreadAdvice advise_threads(int most) {
    const auto others = cores_of_other_programs();
    const auto fitting = [&] { return static_cast<int>(free_cores(*others) + 1 - ThreadControl::nearly_a_core); };
    return {others ? std::clamp(fitting(), 1, most) : most, others};
}

PassThreads::PassThreads(const Threads& threads) : wanted_(threads), count_(threads.most) {
    if (!wanted_.adapt || wanted_.most == 1) return;
    const int found = found_best;
    control_.emplace(wanted_.most, found > 0 ? found : advise_threads(wanted_.most).threads);
    count_ = control_->threads();
}

void PassThreads::keep_within_answers() {
    control_.reset();
}

void PassThreads::begin_answer() {
    if (wanted_.adapt && !control_) count_ = advise_threads(wanted_.most).threads;
}

void PassThreads::hold() {
    if (control_) control_->hold();
}

int PassThreads::begin(int rows) {
    if (!given_up_) repeats_ = 0;
    given_up_ = false;
    patience_ms_ = forever;
    if (!control_) return count_;
    rows_ = rows;
    count_ = control_->threads();
    if (count_ > 1 && repeats_ < most_repeats) patience_ms_ = control_->patience_ms(rows);
    cpu_ms_ = process_cpu_ms();
    watch_.lap();
    return count_;
}

// How many of the pass's threads did not run, on average.
double PassThreads::waiting() const {
    const double ms = std::max(watch_.elapsed_ms(), 1e-3);
    return std::clamp(count_ - (process_cpu_ms() - cpu_ms_) / ms, 0.0, static_cast<double>(count_));
}

bool PassThreads::gives_up() {
    if (given_up_ || patience_ms_ == forever || watch_.elapsed_ms() < patience_ms_) return given_up_;
    given_up_ = waiting() > ThreadControl::too_many_waiting;
    patience_ms_ = watch_.elapsed_ms() + more_patience_ms;
    return given_up_;
}

bool PassThreads::end(bool stopped) {
    given_up_ &= stopped;
    if (!control_) return std::exchange(given_up_, false);
    control_->report({count_, rows_, watch_.elapsed_ms(), waiting(), given_up_});
    if (const auto others = cores_of_other_programs()) control_->set_room(free_cores(*others));
    found_best = control_->threads();
    repeats_ += given_up_;
    return given_up_;
}

ThreadUse PassThreads::use() const {
    const auto reason = [&] {
        if (!wanted_.adapt) return "asked";
        if (!control_) return count_ == wanted_.most ? "all" : "others";
        if (control_->reason() == ThreadControl::Reason::all) return "all";
        return control_->reason() == ThreadControl::Reason::slower ? "slower" : "others";
    };
    return {count_, wanted_.most, repeats_ > 0, reason()};
}

}  // namespace medusa
