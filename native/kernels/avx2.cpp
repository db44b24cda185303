// Compiled with AVX2, FMA and F16C; nothing here may run before select_kernels() has seen them.
#include "kernels/dispatch.inl"

namespace medusa::kernels {
namespace {

// Products are first added up in 16 bits. Unsigned codes are narrow enough for several of them; the others become
// signed weights, and only one of their products, with the sign moved to the activation, fits.
template <Codes codes, bool has_table>
constexpr bool is_signed = has_table || codes == Codes::u8;
// MXFP4's values are at most 12.
template <Codes codes, Scales scales, bool has_table>
constexpr int products_in_16_bits = scales == Scales::exponent    ? 8
                                    : is_signed<codes, has_table> ? 1
                                    : codes <= Codes::u4          ? 8
                                    : codes == Codes::u5          ? 4
                                                                  : 2;

#include "kernels/avx2.inl"

// Makes the compiler add here. GCC puts additions off and keeps all products of a tile in memory until then.
inline void keep(__m256i& sum) {
#if defined(__GNUC__)
    __asm__("" : "+x"(sum));
#else
    (void)sum;
#endif
}

template <int begin, int end, int n, class Weights>
inline void add_products(const Weights& weights, const Activations<n>& a, __m256i (&dot)[n][parts]) {
    constexpr int run = std::min(Weights::products, end - begin);
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int first = begin; first < end; first += run) {
        __m256i sum[n][parts];
#pragma GCC unroll 8
        for (int i = first; i < first + run; ++i) {
            const int j = word_at<begin, end>(i);
            const __m256i w[parts] = {weights.word(j, 0), weights.word(j, 1)};
            const __m256i size[parts] = {Weights::has_sign ? _mm256_abs_epi8(w[0]) : w[0],
                                         Weights::has_sign ? _mm256_abs_epi8(w[1]) : w[1]};
#pragma GCC unroll 8
            for (int k = 0; k < n * parts; ++k) {
                const int c = k / parts, part = k % parts;
                const __m256i q = _mm256_set1_epi32(a.q[j][c]);
                const __m256i product =
                    _mm256_maddubs_epi16(size[part], Weights::has_sign ? _mm256_sign_epi8(q, w[part]) : q);
                sum[c][part] = i == first ? product : _mm256_add_epi16(sum[c][part], product);
                keep(sum[c][part]);
            }
        }
#pragma GCC unroll 8
        for (int k = 0; k < n * parts; ++k) {
            const int c = k / parts, part = k % parts;
            const __m256i wide = _mm256_madd_epi16(sum[c][part], ones);
            if (first > begin) {
                dot[c][part] = _mm256_add_epi32(dot[c][part], wide);
            } else if constexpr (Weights::has_min || Weights::has_sign) {
                dot[c][part] = wide;  // no zero point
            } else {
                dot[c][part] = _mm256_add_epi32(_mm256_set1_epi32(a.start[begin / 4][c]), wide);
            }
        }
    }
}

}  // namespace

const Kernels avx2 = {"avx2", quantize_avx2, multiply, multiply_floats_avx2, attend_avx2, delta_net_avx2};

}  // namespace medusa::kernels
