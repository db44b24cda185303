// What the kernels of all instruction sets share. Each file defines run(): one copy per file, so that no function built
// for one instruction set is linked into another's.
#pragma once

#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/format.h"
#include "kernels/prefetch.inl"

namespace medusa::kernels {
namespace {

// All groups of the job, for one kind of codes and scales.
template <Codes codes, Scales scales, bool has_table>
void run(const Job& job);

// false: the job has another format.
template <size_t i>
bool run_format(const Job& job) {
    constexpr Format format = formats[i];
    if (job.format.type != format.type) return false;
    if constexpr (!format.is_float()) run<format.codes, format.scales, format.table != nullptr>(job);
    return true;
}

void multiply(const Job& job) {
    [&]<size_t... i>(std::index_sequence<i...>) {
        (run_format<i>(job) || ...);
    }(std::make_index_sequence<std::size(formats)>());
#if defined(__AVX__)
    // Compilers leave this out after functions that take vectors as arguments. Without it, any plain SSE code on this
    // thread (the C library, samplers, Python) runs several times slower from here on.
    _mm256_zeroupper();
#endif
}

}  // namespace
}  // namespace medusa::kernels
