#include "base/other_programs.h"

#include <algorithm>
#include <mutex>

#include "base/common.h"
#include "base/platform.h"

namespace medusa {
namespace {

constexpr double least_span_ms = 200;  // the kernel counts in steps of 10 ms

struct Measurement {
    std::mutex mutex;
    Stopwatch since;
    double all = allowed_cores_cpu_ms(), own = process_cpu_ms();
    std::optional<double> cores;

    std::optional<double> newest() {
        const std::lock_guard lock(mutex);
        if (all < 0 || since.elapsed_ms() < least_span_ms) return cores;
        const double span = since.lap(), all_then = all, own_then = own;
        all = allowed_cores_cpu_ms(), own = process_cpu_ms();
        if (all >= 0) cores = std::max((all - all_then - (own - own_then)) / span, 0.0);
        return cores;
    }
};

Measurement& measurement() {
    static Measurement one;
    return one;
}

}  // namespace

void begin_measuring_other_programs() {
    measurement();
}

std::optional<double> cores_of_other_programs() {
    return measurement().newest();
}

}  // namespace medusa
