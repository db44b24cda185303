// How long the model itself takes: what benchmarks and `tune` ask before they choose a tree.
#pragma once

#include <memory>
#include <vector>

#include "llama/target.h"

namespace medusa {

struct TimingParams {
    int position = 64;  // tokens in the cache
    int repeats = 5;
    Threads threads;
};

// Forward passes of several widths behind the same `position` tokens, which are decoded once.
class VerifyTimer {
  public:
    // widest: at most Tree::max_size. context_size 0: as small as it can be (the cache's size may change what a pass
    // costs, so give that of the sessions). hidden: the passes give hidden states, too, as those of a drafting session
    // do.
    VerifyTimer(std::shared_ptr<LlamaModel> model, int widest, int position, int context_size, Threads threads,
                bool hidden, const StopPoll& stop);
    // Milliseconds of each of `passes` passes in a row over a root and width - 1 leaves.
    std::vector<double> time(int width, int passes);

  private:
    int widest_;
    LlamaTarget target_;
};

// Milliseconds of `repeats` forward passes over `width` tokens behind `position` others: as a tree of one root and
// width - 1 leaves (at most Tree::max_size), or as a piece of a prompt.
std::vector<double> time_verify(std::shared_ptr<LlamaModel> model, int width, const TimingParams& params);
std::vector<double> time_prefill(std::shared_ptr<LlamaModel> model, int width, const TimingParams& params);

}  // namespace medusa
