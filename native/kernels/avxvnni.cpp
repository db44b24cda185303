// The AVX2 kernels with the dot products of AVX-VNNI, for processors without AVX512.
// Compiled with AVX2, FMA, F16C and AVX-VNNI; nothing here may run before select_kernels() has seen them.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/format.h"

namespace medusa::kernels {
namespace {

#include "kernels/dispatch.inl"

constexpr int words = 8;  // a cell is 8 registers of 8 rows x 4 columns

template <Codes codes, bool has_table>
constexpr bool is_signed = false;

// dot + the products of words begin..end-1 of a cell.
template <Codes codes, bool has_table, int begin, int end>
inline __m256i add_products(__m256i dot, const __m256i (&w)[words], const int8_t* q) {
    for (int j = begin; j < end; ++j) {
        int32_t four;
        std::memcpy(&four, q + 4 * j, 4);
        dot = _mm256_dpbusd_avx_epi32(dot, w[j], _mm256_set1_epi32(four));
    }
    return dot;
}

#include "kernels/avx2.inl"

}  // namespace

const Kernels avxvnni = {"avxvnni",
                         [](const Format& f, const float* x, int64_t n, void* c) { scalar.quantize(f, x, n, c); },
                         multiply, attend_avx2, delta_net_avx2};

}  // namespace medusa::kernels
