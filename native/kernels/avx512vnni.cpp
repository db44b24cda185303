// 16 rows in the lanes of a zmm register, up to 8 activation columns at a time. See scalar.cpp for what is computed.
// Compiled with AVX512 F, BW, DQ, VL and VNNI; nothing here may run before select_kernels() has seen them.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format.h"

namespace medusa::kernels {
namespace {

#include "dispatch.inl"

constexpr int tile_columns = 8;
constexpr int words = 8;  // a cell is 8 registers of 16 rows x 4 columns

template <Codes codes, bool has_table>
inline void load_codes(const uint8_t* cell, const __m512i table, __m512i (&w)[words]) {
    if constexpr (codes == Codes::u8) {
        for (int j = 0; j < words; ++j) w[j] = _mm512_loadu_si512(cell + 64 * j);
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < 4; ++j) {
        const __m512i packed = _mm512_loadu_si512(cell + 64 * j);
        w[j] = _mm512_and_si512(packed, low);
        w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low);
    }
    if constexpr (has_table) {
        for (int j = 0; j < words; ++j) w[j] = _mm512_shuffle_epi8(table, w[j]);
    }
    if constexpr (codes == Codes::u5) {
        const __m512i high = _mm512_loadu_si512(cell + 256), sixteen = _mm512_set1_epi8(16);
        for (int j = 0; j < words; ++j) {
            const __mmask64 set = _mm512_test_epi8_mask(high, _mm512_set1_epi8(static_cast<char>(1 << j)));
            w[j] = _mm512_mask_add_epi8(w[j], set, w[j], sixteen);
        }
    }
    if constexpr (codes == Codes::u6) {
        const __m512i bits = _mm512_set1_epi8(0x30);
        for (int half = 0; half < 2; ++half) {
            const __m512i high = _mm512_loadu_si512(cell + 256 + 64 * half);
            const __m512i shifted[4] = {_mm512_slli_epi16(high, 4), _mm512_slli_epi16(high, 2), high,
                                        _mm512_srli_epi16(high, 2)};
            // a | (b & c)
            for (int j = 0; j < 4; ++j) {
                w[4 * half + j] = _mm512_ternarylogic_epi32(w[4 * half + j], shifted[j], bits, 0xF8);
            }
        }
    }
}

inline __m512 halves(const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
inline __m512 unsigned_bytes(const uint8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
inline __m512 signed_bytes(const uint8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}

struct Scale {
    __m512 d, d2, m;
};

// `head`: those of the super-block, converted; `at`: the cell's own bytes.
template <Scales scales>
inline Scale load_scale(const Scale& head, const uint8_t* at) {
    Scale out{};
    if constexpr (scales == Scales::half) {
        out.d = halves(at);
    } else if constexpr (scales == Scales::half_min) {
        out.d = halves(at);
        out.m = halves(at + 32);
    } else if constexpr (scales == Scales::exponent) {
        // 2^(e - 128); the smallest two are denormal.
        const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
        const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
        const __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
        out.d = _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, tiny));
    } else if constexpr (scales == Scales::super_min) {
        out.d = _mm512_mul_ps(head.d, unsigned_bytes(at));
        // Negated as a whole: head.m holds -dmin.
        out.m = _mm512_mul_ps(head.m, unsigned_bytes(at + 16));
    } else if constexpr (scales == Scales::super_half) {
        out.d = _mm512_mul_ps(head.d, signed_bytes(at));
        out.d2 = _mm512_mul_ps(head.d, signed_bytes(at + 16));
    } else {
        out.d = _mm512_mul_ps(head.d, signed_bytes(at));
    }
    return out;
}

// One group of rows times `n` columns.
template <Codes codes, Scales scales, bool has_table, int n>
void multiply_tile(const uint8_t* code, const uint8_t* scale, int64_t cells, __m512i table, const Column* column,
                   const uint8_t* last, float* result, size_t result_stride) {
    constexpr Format sizes{GGML_TYPE_F32, codes, scales, 0, nullptr};
    __m512 acc[n];
    for (int c = 0; c < n; ++c) acc[c] = _mm512_setzero_ps();
    Scale head{};
    for (int64_t cell = 0; cell < cells; ++cell) {
        if constexpr (head_bytes<scales> != 0) {
            if (cell % cells_per_super == 0) {
                head.d = halves(scale);
                if constexpr (scales == Scales::super_min) {
                    head.m = _mm512_xor_ps(halves(scale + 32), _mm512_set1_ps(-0.0f));
                }
                scale += head_bytes<scales>;
            }
        }
        __m512i w[words];
        load_codes<codes, has_table>(code, table, w);
        const Scale s = load_scale<scales>(head, scale);
        for (size_t line = 0; line < sizes.code_bytes(); line += 64) prefetch(code + line, last);
        prefetch(scale, last);
#pragma GCC unroll 8
        for (int c = 0; c < n; ++c) {
            const CellSums& sums = column[c].sums[cell];
            const int8_t* q = column[c].q + cell * cell_columns;
            const auto word = [q](int j) {
                int32_t four;
                std::memcpy(&four, q + 4 * j, 4);
                return _mm512_set1_epi32(four);
            };
            const __m512 d = _mm512_set1_ps(sums.d);
            __m512i dot = _mm512_set1_epi32(sums.start[0]);
            for (int j = 0; j < 4; ++j) dot = _mm512_dpbusd_epi32(dot, w[j], word(j));
            if constexpr (scales == Scales::super_half) {
                acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s.d, d), acc[c]);
                dot = _mm512_set1_epi32(sums.start[1]);
                for (int j = 4; j < words; ++j) dot = _mm512_dpbusd_epi32(dot, w[j], word(j));
                acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s.d2, d), acc[c]);
            } else {
                for (int j = 4; j < words; ++j) dot = _mm512_dpbusd_epi32(dot, w[j], word(j));
                acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s.d, d), acc[c]);
            }
            if constexpr (scales == Scales::half_min || scales == Scales::super_min) {
                acc[c] = _mm512_fmadd_ps(s.m, _mm512_set1_ps(sums.all), acc[c]);
            }
        }
        code += sizes.code_bytes();
        scale += own_bytes<scales>;
    }
    for (int c = 0; c < n; ++c) _mm512_storeu_ps(result + c * result_stride, acc[c]);
}

using TileFunction = void (*)(const uint8_t*, const uint8_t*, int64_t, __m512i, const Column*, const uint8_t*, float*,
                              size_t);

template <Codes codes, Scales scales, bool has_table>
void run(const Job& job) {
    static constexpr TileFunction tiles[tile_columns] = {
        multiply_tile<codes, scales, has_table, 1>, multiply_tile<codes, scales, has_table, 2>,
        multiply_tile<codes, scales, has_table, 3>, multiply_tile<codes, scales, has_table, 4>,
        multiply_tile<codes, scales, has_table, 5>, multiply_tile<codes, scales, has_table, 6>,
        multiply_tile<codes, scales, has_table, 7>, multiply_tile<codes, scales, has_table, 8>};
    __m512i table = _mm512_setzero_si512();
    if constexpr (has_table) {
        const __m128i signed_values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(job.format.table));
        table = _mm512_broadcast_i32x4(_mm_xor_si128(signed_values, _mm_set1_epi8(static_cast<char>(0x80))));
    }
    const int64_t cells = job.columns / cell_columns;
    const size_t group_bytes = job.format.group_bytes(job.columns);
    const uint8_t* last = job.last_line();
    // A group of rows stays in the first cache for all tiles of columns.
    for (int64_t group = job.begin; group < job.end; ++group) {
        const uint8_t* code = static_cast<const uint8_t*>(job.packed) + group * group_bytes;
        const uint8_t* scale = code + static_cast<size_t>(cells) * job.format.code_bytes();
        for (int first = 0; first < job.n; first += tile_columns) {
            const int n = std::min(tile_columns, job.n - first);
            Column column[tile_columns];
            for (int c = 0; c < n; ++c) {
                const auto* base = static_cast<const char*>(job.activations) + (first + c) * job.stride;
                column[c] = {reinterpret_cast<const int8_t*>(base), column_sums(base, job.columns)};
            }
            float* result = job.result + first * job.result_stride + group * group_rows;
            tiles[n - 1](code, scale, cells, table, column, last, result, job.result_stride);
        }
    }
}

void quantise(const Format& format, const float* x, int64_t columns, void* column) {
    int8_t* q = column_values(column);
    CellSums* sums = column_sums(column, columns);
    const bool two = format.scales == Scales::super_half;
    for (int64_t cell = 0; cell < columns / cell_columns; ++cell, x += cell_columns, q += cell_columns) {
        const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
        const __m512 size_a = _mm512_abs_ps(a), size_b = _mm512_abs_ps(b);
        float largest = _mm512_reduce_max_ps(_mm512_max_ps(size_a, size_b));
        if (_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q)) largest = NAN;
        const float d = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
        const auto round = [inverse](__m512 v) {
            const __m512 scaled = _mm512_mul_ps(v, _mm512_set1_ps(inverse));
            const __mmask16 sane = _mm512_cmp_ps_mask(_mm512_abs_ps(scaled), _mm512_set1_ps(127.5f), _CMP_LE_OQ);
            return _mm512_maskz_cvtps_epi32(sane, scaled);
        };
        const __m512i qa = round(a), qb = round(b);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(qa));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtepi32_epi8(qb));
        const int32_t low = _mm512_reduce_add_epi32(qa), high = _mm512_reduce_add_epi32(qb);
        sums[cell].d = d;
        sums[cell].all = d * static_cast<float>(low + high);
        sums[cell].start[0] = -format.zero * (two ? low : low + high);
        sums[cell].start[1] = two ? -format.zero * high : 0;
    }
}

}  // namespace

const Kernels avx512vnni = {"avx512vnni", quantise, multiply, attend_avx512};

}  // namespace medusa::kernels
