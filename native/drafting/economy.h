// The economy of drafting: what steps cost and bring is learned once, for all who decide by it.
#pragma once

#include <memory>

#include "decoding/step_policy.h"
#include "drafting/draft_cost.h"
#include "drafting/watchdog.h"

namespace medusa {

// Tells `cost`, which drafters read, of every step; a watched generation's steps go to the watchdog, too, which decides
// whether drafts are wanted.
class Economy final : public StepPolicy {
  public:
    explicit Economy(std::shared_ptr<DraftCost> cost) : cost_(std::move(cost)) {}

    void begin_generation(bool watched) override {
        watched_ = watched;
        if (watched_) watchdog_.begin_generation();
    }
    bool speculate() override { return !watched_ || watchdog_.speculate(); }
    void report(const StepReport& step) override {
        cost_->record({step.nodes, step.leaves}, step.verify_ms);
        cost_->record_step(step.draft_ms + step.verify_ms, step.tokens);
        // Drafts in a step that was to be plain (prompt lookup weighs its own cost) tell nothing of either kind.
        const bool either = step.speculative || step.nodes == 1;
        if (watched_ && either) watchdog_.report(step.speculative, step.step_ms, step.tokens);
    }

  private:
    std::shared_ptr<DraftCost> cost_;
    Watchdog watchdog_;
    bool watched_ = false;
};

}  // namespace medusa
