// How long the model itself takes: what benchmarks and `tune` measure before they choose a tree.
#pragma once

#include <memory>
#include <vector>

#include "llama/target.h"

namespace medusa {

// Forward passes of several widths after the same `position` tokens, which are decoded once.
class VerifyTimer {
  public:
    // widest: at most Tree::max_size. context_size 0: as small as possible (the cache's size may change what a pass
    // costs, so pass that of the sessions). hidden: passes also give hidden states, as in a drafting session; with
    // tap_layer, those after that layer, and reading them is part of the time.
    VerifyTimer(std::shared_ptr<LlamaModel> model, int widest, int position, int context_size, Threads threads,
                bool hidden, std::optional<int> tap_layer, const StopPoll& stop);
    // Milliseconds for each of `passes` passes in a row over a root and width - 1 leaves.
    std::vector<double> time(int width, int passes);

  private:
    int widest_;
    bool tapped_;
    LlamaTarget target_;
};

}  // namespace medusa
