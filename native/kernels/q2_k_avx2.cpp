// Products of Q2_K with AVX2, whose half cells have scales and mins of their own: 8 rows in the lanes of a register, up
// to 4 activation columns at a time. See scalar.cpp for what is computed. Nothing here may run before select_kernels()
// has seen AVX2, FMA and F16C.
#include "kernels/prefetch.inl"

namespace medusa::kernels {
namespace {

constexpr int tile_columns = 4;
constexpr int lanes = 8;  // half a group

inline __m128i load_8(const uint8_t* at) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
}
inline __m256 halves(const uint8_t* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline __m256 nibbles(__m128i bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15))));
}

// The products of 16 columns of 8 rows: `plane` holds their codes.
inline __m256i dot(__m256i plane, const int8_t* q) {
    const __m256i three = _mm256_set1_epi8(3);
    const __m256i words[4] = {plane, _mm256_srli_epi16(plane, 2), _mm256_srli_epi16(plane, 4),
                              _mm256_srli_epi16(plane, 6)};
    __m256i sum = _mm256_setzero_si256();
    for (int j = 0; j < 4; ++j) {
        int32_t four;
        std::memcpy(&four, q + 4 * j, 4);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_and_si256(words[j], three), _mm256_set1_epi32(four)));
    }
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

// Rows first..first+7 of a group times `n` columns.
template <int n>
void multiply_tile(const uint8_t* code, const uint8_t* scale, int64_t cells, int first, const Column* column,
                   const uint8_t* last, float* result, size_t result_stride) {
    __m256 acc[n], head_d{}, head_min{};
    for (int c = 0; c < n; ++c) acc[c] = _mm256_setzero_ps();
    for (int64_t cell = 0; cell < cells; ++cell, code += 128, scale += 32) {
        if (cell % cells_per_super == 0) {
            head_d = halves(scale + 2 * first);
            head_min = _mm256_xor_ps(halves(scale + 32 + 2 * first), _mm256_set1_ps(-0.0f));
            scale += 64;
        }
        prefetch(code, last);
        prefetch(code + 64, last);
        prefetch(scale, last);
        __m256i plane[2];
        __m256 d[2], min[2];
        for (int half = 0; half < 2; ++half) {
            plane[half] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(code + 64 * half + 4 * first));
            const __m128i both = load_8(scale + 16 * half + first);
            d[half] = _mm256_mul_ps(head_d, nibbles(both));
            min[half] = _mm256_mul_ps(head_min, nibbles(_mm_srli_epi16(both, 4)));
        }
#pragma GCC unroll 4
        for (int c = 0; c < n; ++c) {
            const CellSums& sums = column[c].sums[cell];
            const int8_t* q = column[c].q + cell * cell_columns;
            const __m256 by = _mm256_set1_ps(sums.d);
            for (int half = 0; half < 2; ++half) {
                const __m256 product = _mm256_cvtepi32_ps(dot(plane[half], q + 16 * half));
                acc[c] = _mm256_fmadd_ps(product, _mm256_mul_ps(d[half], by), acc[c]);
            }
            for (int half = 0; half < 2; ++half) {
                const float all = sums.d * static_cast<float>(sums.start[half]);
                acc[c] = _mm256_fmadd_ps(min[half], _mm256_set1_ps(all), acc[c]);
            }
        }
    }
    for (int c = 0; c < n; ++c) _mm256_storeu_ps(result + c * result_stride, acc[c]);
}

}  // namespace

void multiply_q2_k_avx2(const Job& job) {
    static constexpr decltype(&multiply_tile<1>) tiles[tile_columns] = {multiply_tile<1>, multiply_tile<2>,
                                                                        multiply_tile<3>, multiply_tile<4>};
    const uint8_t* last = job.last_line();
    const int64_t cells = job.columns / cell_columns;
    for (int64_t group = job.begin; group < job.end; ++group) {
        const uint8_t* code = job.group(group);
        const uint8_t* scale = code + static_cast<size_t>(cells) * job.format.code_bytes();
        for (int column_begin = 0; column_begin < job.n; column_begin += tile_columns) {
            const int count = std::min(tile_columns, job.n - column_begin);
            Column column[tile_columns];
            for (int c = 0; c < count; ++c) column[c] = column_at(job, column_begin + c);
            float* result = job.result + column_begin * job.result_stride + group * group_rows;
            for (int first = 0; first < group_rows; first += lanes) {
                tiles[count - 1](code, scale, cells, first, column, last, result + first, job.result_stride);
            }
        }
    }
    _mm256_zeroupper();  // otherwise plain SSE code crawls from here on
}

}  // namespace medusa::kernels
