// The threads for a context's passes: as many as requested, or as many as the machine has room for.
#pragma once

#include <limits>
#include <optional>

#include "base/common.h"
#include "decoding/target.h"
#include "llama/thread_control.h"

namespace medusa {

struct Threads {
    int most = 1;
    bool adapt = false;  // use fewer of them where other programs need the processor
};

// How many of `most` threads a first pass would use, and how many cores other programs use (nullopt: not known).
struct ThreadAdvice {
    int threads;
    std::optional<double> others;
};
ThreadAdvice advise_threads(int most);

class PassThreads {
  public:
    explicit PassThreads(const Threads& threads);

    // From now on only begin_answer() chooses a count, and passes are not repeated: their bits depend on it.
    void keep_within_answers();
    void begin_answer();
    void hold();
    // How many threads the pass over this many rows uses.
    int begin(int rows);
    // Polled while the pass runs: whether it should end and be repeated with fewer threads.
    bool gives_up();
    // stopped: before its end. Returns whether it has to be repeated.
    bool end(bool stopped);
    // For the newest pass.
    ThreadUse use() const;

  private:
    double waiting() const;

    Threads wanted_;
    std::optional<ThreadControl> control_;  // where counts adapt, also within answers
    int count_;                             // of the newest pass
    int rows_ = 0;
    Stopwatch watch_;
    double cpu_ms_ = 0;  // of this process, when the pass began
    double patience_ms_ = std::numeric_limits<double>::infinity();
    int repeats_ = 0;  // of the newest pass
    bool given_up_ = false;
};

}  // namespace medusa
