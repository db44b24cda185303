// Whether the next step drafts, and what steps cost and bring: what the engine asks and reports.
#pragma once

namespace medusa {

// One finished step.
struct StepReport {
    bool speculative = true;    // drafts were wanted
    int nodes = 1, leaves = 1;  // of the tree it verified, root included
    int tokens = 1;             // how many it committed, at least the root
    double draft_ms = 0, verify_ms = 0;
    double step_ms = 0;      // all of it, up to the commit
    int threads = 0;         // threads that verified it; 0: not known
    bool disturbed = false;  // other programs kept its threads from running: its times mean nothing
};

// Asked before each step whether to draft, and told after it what the step cost. Knows no clock.
class StepPolicy {
  public:
    virtual ~StepPolicy() = default;
    // watched: steps may be kept from drafting; otherwise drafts are always wanted.
    // padded: the cost of a tree depends on padded_size().
    virtual void begin_generation(bool watched, bool padded) = 0;
    virtual bool speculate() = 0;
    virtual void report(const StepReport& step) = 0;
};

}  // namespace medusa
