// The AVX2 kernels with the dot products of AVX-VNNI, for processors without AVX512.
// Compiled with AVX2, FMA, F16C and AVX-VNNI; nothing here may run before select_kernels() has seen them.
#include "kernels/dispatch.inl"

namespace medusa::kernels {
namespace {

template <Codes codes, bool has_table>
constexpr bool is_signed = false;
template <Codes codes, Scales scales, bool has_table>
constexpr int products_in_16_bits = 0;  // they are added up in 32 bits

#include "kernels/avx2.inl"

template <int begin, int end, int n, class Weights>
inline void add_products(const Weights& weights, const Activations<n>& a, __m256i (&dot)[n][parts]) {
#pragma GCC unroll 4
    for (int c = 0; c < n; ++c) {
        // Formats with mins have no zero point.
        dot[c][0] = Weights::has_min ? _mm256_setzero_si256() : _mm256_set1_epi32(a.start[begin / 4][c]);
        dot[c][1] = dot[c][0];
    }
#pragma GCC unroll 8
    for (int i = begin; i < end; ++i) {
        const int j = word_at<begin, end>(i);
        const __m256i w[parts] = {weights.word(j, 0), weights.word(j, 1)};
#pragma GCC unroll 4
        for (int c = 0; c < n; ++c) {
            const __m256i q = _mm256_set1_epi32(a.q[j][c]);
            dot[c][0] = _mm256_dpbusd_avx_epi32(dot[c][0], w[0], q);
            dot[c][1] = _mm256_dpbusd_avx_epi32(dot[c][1], w[1], q);
        }
    }
}

}  // namespace

const Kernels avxvnni = {"avxvnni", quantize_avx2, multiply, multiply_floats_avx2, attend_avx2, delta_net_avx2};

}  // namespace medusa::kernels
