// Whether the next step drafts: measures speculation against plain decoding while both run.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "decoding/step_policy.h"
#include "drafting/draft_cost.h"

namespace medusa {

// The newest values of a series, up to a fixed number.
class RecentValues {
  public:
    explicit RecentValues(size_t capacity) : capacity_(capacity) {}
    void push(double value);
    void clear();
    size_t size() const { return values_.size(); }
    double median() const;
    // Each value counts for at most `cap`.
    double sum(double cap = std::numeric_limits<double>::infinity()) const;

  private:
    size_t capacity_, oldest_ = 0;
    std::vector<double> values_;
};

// Decodes plainly until speculation has shown, on this model and text, that its tokens come cheaper.
//
// All trials are paid from an account: each generation may lose a small share of the time that plain decoding would
// have taken so far. A speculative step pays in what it saved against plain steps, or takes out what it lost; when the
// account cannot cover the next loss, speculation ends. It also ends when the newest steps of a run cost more per token
// than plain ones, however much was saved before. The wait before the next trial doubles with each failure and starts
// small again after a success. A winning run is interrupted now and then to time some plain steps again, since both
// kinds grow with the context and a machine has slow spells.
//
// What was measured, and a running success, outlive the generation. A generation that starts with speculation because
// earlier ones gained may give back `carried_steps` plain steps of that gain.
class Watchdog {
  public:
    void begin_generation();
    bool speculate();
    // `speculative`: the step verified drafts. `tokens` (at least 1): how many it committed.
    void report(bool speculative, double ms, int tokens);

  private:
    double plain_ms() const;
    double account_ms() const;    // what this generation may still lose
    double step_loss_ms() const;  // by a step without an accepted draft
    bool losing() const;
    void stop();
    void fail();
    void report_plain(double ms, bool switched);
    void report_speculative(double ms, int tokens);
    void pay(double gain_ms);

    static constexpr double loss_share = 0.02;
    static constexpr double unknown_loss = 0.8;  // plain steps that a speculative step may lose before one was timed
    static constexpr double carried_steps = 3;
    static constexpr int trial_steps = 2;  // without an accepted draft, that a trial must be able to pay for
    static constexpr int stake_steps = 3;  // that it may pay for at most, however much there is,
    static constexpr double least_stake =
        0.6;  // or this many plain steps: cheap drafts deserve more than one unlucky step
    static constexpr size_t warm_up = 4;
    static constexpr size_t judged = 16;  // steps of a run before its cost is compared
    static constexpr int first_wait = 32, longest_wait = 1024;
    static constexpr int first_run = 16, longest_run = 256, plain_run = 8;  // steps between plain timings, and in one
    // A slower step was disturbed, not costly: multiples of typical steps, or of plain ones while none are typical.
    static constexpr double disturbed = 2, disturbed_at_first = 4;

    RecentValues plain_{15};
    RecentValues step_cost_{8};              // speculative steps of several runs, in plain steps
    RecentValues run_ms_{32};                // speculative steps of this run
    RecentValues run_tokens_{32};            // tokens they committed
    bool speculating_ = false;               // a trial, or the success it became
    bool was_speculative_ = false;           // the newest step
    bool first_step_ = true;                 // of a generation: its graph is new, whatever came before
    int wait_ = 0, next_wait_ = first_wait;  // tokens
    int run_left_ = first_run, next_run_ = first_run, plain_left_ = 0;  // steps
    double tokens_ = 0;                                                 // of this generation
    double balance_ms_ = 0;                                             // saved less lost in this generation
    double carried_ms_ = 0;                                             // from earlier gains, to spend in this one
    double session_balance_ms_ = 0;
    double stake_ms_ = 0;  // what the trial may still lose: its stake and what it saved
};

// The economy of drafting: what steps cost and yield is learned once, for everything that decides by it.
//
// Reports every step to `cost`, which drafters read; a watched generation's steps also go to the watchdog, which
// decides whether drafts are wanted. Each number of threads has prices and a watchdog of its own; steps disturbed by
// other programs do not count.
class Economy final : public StepPolicy {
  public:
    explicit Economy(std::shared_ptr<DraftCost> cost) : cost_(std::move(cost)) {}

    void begin_generation(bool watched, bool padded) override {
        watched_ = watched;
        cost_->pads(padded);
        for (auto& [threads, watch] : watches_) watch.begun = false;
    }
    bool speculate() override { return !watched_ || watchdog().speculate(); }
    void report(const StepReport& step) override {
        cost_->runs_with(step.threads);
        if (step.disturbed) return;
        cost_->record({step.nodes, step.leaves}, step.verify_ms);
        cost_->record_step(step.draft_ms + step.verify_ms, step.tokens);
        // Drafts in a step that was to be plain (prompt lookup weighs its own cost) say nothing about either kind.
        const bool either = step.speculative || step.nodes == 1;
        if (watched_ && either) watchdog().report(step.speculative, step.step_ms, step.tokens);
    }

  private:
    struct Watch {
        Watchdog dog;
        bool begun = false;  // in this generation
    };
    Watchdog& watchdog() {
        Watch& watch = watches_[cost_->threads()];
        if (!watch.begun) watch.dog.begin_generation();
        watch.begun = true;
        return watch.dog;
    }

    std::shared_ptr<DraftCost> cost_;
    std::map<int, Watch> watches_;  // by threads
    bool watched_ = false;
};

}  // namespace medusa
