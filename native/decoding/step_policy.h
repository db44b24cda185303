// Whether the next step drafts, as the engine asks.
#pragma once

namespace medusa {

// Asked before each step whether to draft, told after it what the step cost. Knows no clock.
class StepPolicy {
  public:
    virtual ~StepPolicy() = default;
    virtual void begin_generation() = 0;
    virtual bool speculate() = 0;
    // `speculative`: the step verified drafts. `tokens` (at least 1): what it committed.
    virtual void report(bool speculative, double ms, int tokens) = 0;
};

}  // namespace medusa
