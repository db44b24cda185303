// Quantizes activations to 8 bits with AVX2. Compiled with AVX2, FMA and F16C; nothing here may run before
// select_kernels() has seen them.
#include "kernels/quantize.inl"

namespace medusa::kernels {
namespace {

// A cell's 16-bit values as bytes, in order.
inline __m256i bytes_of(__m256i low, __m256i high) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
}

// The largest magnitude of each of four cells, as bits of floats: a NaN's are larger than any number's.
inline __m128i largest_of_four(const float* x) {
    const __m256i size = _mm256_set1_epi32(0x7fffffff);
    const auto most = [&](int cell) {
        const auto bits = [&](int i) {
            return _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + cell * cell_columns + 8 * i)), size);
        };
        return _mm256_max_epi32(_mm256_max_epi32(bits(0), bits(1)), _mm256_max_epi32(bits(2), bits(3)));
    };
    const auto halve = [](__m256i even, __m256i odd) {
        return _mm256_max_epi32(_mm256_unpacklo_epi32(even, odd), _mm256_unpackhi_epi32(even, odd));
    };
    const __m256i pairs = halve(most(0), most(1)), others = halve(most(2), most(3));
    const __m256i quads = _mm256_max_epi32(_mm256_unpacklo_epi64(pairs, others), _mm256_unpackhi_epi64(pairs, others));
    return _mm_max_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
}

bool quantize_four(const Format& format, const float* x, int8_t* q, CellSums* sums) {
    const FourCells cells(largest_of_four(x));
    if (!cells.are_normal()) return false;
    __m256i quads[cells_together];  // sums of four values
    for (int cell = 0; cell < cells_together; ++cell) {
        const auto round = [&](int i) {
            const __m256 v = _mm256_loadu_ps(x + cell * cell_columns + 8 * i);
            return _mm256_cvtps_epi32(_mm256_mul_ps(v, _mm256_set1_ps(cells.inverse[cell])));
        };
        const __m256i low = _mm256_packs_epi32(round(0), round(1)), high = _mm256_packs_epi32(round(2), round(3));
        const __m256i bytes = bytes_of(low, high);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + cell * cell_columns), bytes);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
        quads[cell] = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
    const __m256i halves =
        _mm256_hadd_epi32(_mm256_hadd_epi32(quads[0], quads[1]), _mm256_hadd_epi32(quads[2], quads[3]));
    cells.store(format, _mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1), sums);
    return true;
}

}  // namespace

void quantize_avx2(const Format& format, const float* x, int64_t columns, void* column) {
    quantize(format, x, columns, column);
}

}  // namespace medusa::kernels
