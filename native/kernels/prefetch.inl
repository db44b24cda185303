// For each file that reads packed weights: each has its own copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/format.h"
#include "kernels/inline.h"

namespace medusa::kernels {
namespace {

struct Column {
    const int8_t* q;
    const CellSums* sums;
};

inline Column column_at(const Job& job, int c) {
    const char* base = job.column(c);
    return {reinterpret_cast<const int8_t*>(base), column_sums(base, job.columns)};
}

// Weights stream from memory in two runs per group, too short for the processor to prefetch well by itself: they are
// requested early into the second-level cache, and shortly before use into the first.
constexpr size_t far_ahead = 32768, near_ahead = 2048;

// A long row's codes are followed by its scales: a whole group ahead is the same place in the next one.
inline size_t far_ahead_in(size_t group_bytes) {
    return std::max(far_ahead, group_bytes);
}

// `last`: the last line of this thread's rows; the lines after it belong to another thread.
MEDUSA_INLINE void prefetch(const uint8_t* at, const uint8_t* last, size_t far = far_ahead) {
    const uint8_t *later = std::min(at + far, last), *soon = std::min(at + near_ahead, last);
#if defined(__GNUC__)
    __builtin_prefetch(later, 0, 1);
    __builtin_prefetch(soon, 0, 3);
#elif defined(_M_ARM64)
    __prefetch(later);
    __prefetch(soon);
#else
    _mm_prefetch(reinterpret_cast<const char*>(later), _MM_HINT_T2);
    _mm_prefetch(reinterpret_cast<const char*>(soon), _MM_HINT_T0);
#endif
}

// Processors drop prefetches that come faster than memory answers (Zen 5 does), and a dropped line costs the whole way
// to memory when it is read. With few columns, a cell is done sooner than its bytes arrive, and after each wait comes a
// burst. So the address of the next cell of `bytes` takes a chain of multiplications: three processor cycles for every
// 32 bytes, which delay nothing else; none if the cell keeps the processor `busy` for more cycles than that.
template <size_t bytes, int busy>
class Pace {
  public:
    // Always 1, once per cell.
    size_t one() {
        if constexpr (!waits) return 1;
#if defined(__GNUC__)
#pragma GCC unroll 32
#endif
        for (size_t i = 0; i < links; ++i) one_ *= one_;
        return one_;
    }

  private:
    static constexpr size_t links = bytes / 32;
    static constexpr bool waits = busy < static_cast<int>(links * 3);

    static size_t unknown_to_compilers() {
        volatile size_t one = 1;
        return one;
    }

    size_t one_ = waits ? unknown_to_compilers() : 1;
};

}  // namespace
}  // namespace medusa::kernels
