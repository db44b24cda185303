// How long the model itself takes: what benchmarks and `tune` ask before they choose a tree.
#pragma once

#include <memory>
#include <vector>

#include "llama/target.h"

namespace medusa {

// Forward passes of several widths behind the same `position` tokens, which are decoded once.
class VerifyTimer {
  public:
    // widest: at most Tree::max_size. context_size 0: as small as it can be (the cache's size may change what a pass
    // costs, so give that of the sessions). hidden: the passes give hidden states, too, as those of a drafting session
    // do; with tap_layer those after that layer, which are read within the time.
    VerifyTimer(std::shared_ptr<LlamaModel> model, int widest, int position, int context_size, Threads threads,
                bool hidden, std::optional<int> tap_layer, const StopPoll& stop);
    // Milliseconds of each of `passes` passes in a row over a root and width - 1 leaves.
    std::vector<double> time(int width, int passes);

  private:
    int widest_;
    bool tapped_;
    LlamaTarget target_;
};

}  // namespace medusa
