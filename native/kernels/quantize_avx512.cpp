// Quantizes activations to 8 bits with AVX-512. Compiled with AVX512 F, BW, DQ and VL; nothing here may run before
// select_kernels() has seen them.
#include "kernels/quantize.inl"

namespace medusa::kernels {
namespace {

// The largest magnitude of each of four cells, as bits of floats: a NaN's are larger than any number's.
__m128i largest_of_four(const __m512 (&x)[2 * cells_together]) {
    const auto most = [&x](int cell) {
        return _mm512_max_epu32(_mm512_castps_si512(_mm512_abs_ps(x[2 * cell])),
                                _mm512_castps_si512(_mm512_abs_ps(x[2 * cell + 1])));
    };
    const auto halve = [](__m512i even, __m512i odd) {
        return _mm512_max_epu32(_mm512_unpacklo_epi32(even, odd), _mm512_unpackhi_epi32(even, odd));
    };
    const __m512i pairs = halve(most(0), most(1)), others = halve(most(2), most(3));
    const __m512i quads = _mm512_max_epu32(_mm512_unpacklo_epi64(pairs, others), _mm512_unpackhi_epi64(pairs, others));
    const __m256i two = _mm256_max_epu32(_mm512_castsi512_si256(quads), _mm512_extracti64x4_epi64(quads, 1));
    return _mm_max_epu32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}

bool quantize_four(const Format& format, const float* x, int8_t* q, CellSums* sums) {
    __m512 v[2 * cells_together];
    for (int i = 0; i < 2 * cells_together; ++i) v[i] = _mm512_loadu_ps(x + 16 * i);
    const FourCells cells(largest_of_four(v));
    if (!cells.are_normal()) return false;
    const auto round = [&](int i) {
        return _mm512_cvtps_epi32(_mm512_mul_ps(v[i], _mm512_set1_ps(cells.inverse[i / 2])));
    };
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i quads[2];  // sums of four values: a cell's first half, its second, the next cell's
    for (int pair = 0; pair < 2; ++pair) {
        const int i = 4 * pair;
        const __m512i first = _mm512_packs_epi32(round(i), round(i + 1));
        const __m512i second = _mm512_packs_epi32(round(i + 2), round(i + 3));
        const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
        _mm512_storeu_si512(q + 64 * pair, bytes);
        quads[pair] = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes), _mm512_set1_epi16(1));
    }
    const __m512i halves =
        _mm512_add_epi32(_mm512_unpacklo_epi32(quads[0], quads[1]), _mm512_unpackhi_epi32(quads[0], quads[1]));
    const __m512i added = _mm512_add_epi32(halves, _mm512_shuffle_epi32(halves, _MM_PERM_BADC));
    const __m512i rows = _mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i low_high = _mm512_castsi512_si256(_mm512_permutexvar_epi32(rows, added));
    cells.store(format, _mm256_castsi256_si128(low_high), _mm256_extracti128_si256(low_high, 1), sums);
    return true;
}

}  // namespace

void quantize_avx512(const Format& format, const float* x, int64_t columns, void* column) {
    quantize(format, x, columns, column);
}

}  // namespace medusa::kernels
