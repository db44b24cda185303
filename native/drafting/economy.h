// The economy of drafting: what steps cost and bring is learned once, for all who decide by it.
#pragma once

#include <map>
#include <memory>

#include "decoding/step_policy.h"
#include "drafting/draft_cost.h"
#include "drafting/watchdog.h"

namespace medusa {

// Tells `cost`, which drafters read, of every step; a watched generation's steps go to the watchdog, too, which decides
// whether drafts are wanted. Each number of threads has prices and a watchdog of its own; steps that other programs
// disturbed count for none.
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
        // Drafts in a step that was to be plain (prompt lookup weighs its own cost) tell nothing of either kind.
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
