// Attention with AVX-512; see attention.cpp for what is computed. Compiled with AVX512 F, BW, DQ and VL.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/format.h"

namespace medusa::kernels {
namespace {

#include "kernels/attention.inl"

constexpr int together = 4;  // keys that are multiplied with a row at a time

inline __m512 halves(const char* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// Lane i: the sum over the 16 numbers of row i.
inline __m512 sum_each(const float* rows) {
    __m512 quad[4];  // lane 4 * b + i of quad[k]: the sum of quarter b of row 4 * k + i
    for (int k = 0; k < 4; ++k) {
        __m512 x[4];
        for (int i = 0; i < 4; ++i) x[i] = _mm512_loadu_ps(rows + (4 * k + i) * lanes);
        const __m512 p = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
        const __m512 q = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
        const __m512d pd = _mm512_castps_pd(p), qd = _mm512_castps_pd(q);
        quad[k] =
            _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(pd, qd)), _mm512_castpd_ps(_mm512_unpackhi_pd(pd, qd)));
    }
    const auto pairs = [](__m512 x, __m512 y) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
    };
    return pairs(pairs(quad[0], quad[1]), pairs(quad[2], quad[3]));
}

inline __m512 exp_of(__m512 x) {
    using namespace exponential;
    const __m512 n =
        _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(log2e)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(ln2_low), _mm512_fnmadd_ps(n, _mm512_set1_ps(ln2_high), x));
    __m512 p = _mm512_set1_ps(taylor[0]);
    for (int i = 1; i < 7; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(taylor[i]));
    const __mmask16 tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(smallest), _CMP_LT_OQ);
    const __m512i odd = _mm512_or_si512(_mm512_castps_si512(_mm512_scalef_ps(p, n)), _mm512_set1_epi32(1));
    return _mm512_mask_mov_ps(_mm512_castsi512_ps(odd), tiny, _mm512_setzero_ps());
}

struct Rows : Tile {
    using Tile::Tile;

    Sight sees(int64_t cell) const {
        if (!a.mask) return Sight::all;
        const __m256i infinite = _mm256_set1_epi16(static_cast<int16_t>(0xFC00));
        __mmask16 any = 0, all = 0xFFFF;
        for (int r = 0; r < n; ++r) {
            const __m256i m = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask[r] + 2 * cell));
            const __mmask16 visible = _mm256_cmpneq_epi16_mask(m, infinite);
            any |= visible, all &= visible;
        }
        return all == 0xFFFF ? Sight::all : any ? Sight::some : Sight::none;
    }

    // Adds 16 * chunks of the products of four keys, which stay in registers, with all rows.
    template <int chunks>
    void multiply(int64_t cell, int64_t d) {
        for (int first = 0; first < lanes; first += together) {
            __m512 key[together][chunks];
            for (int c = 0; c < together; ++c) {
                const char* from = k + (cell + first + c) * a.k_cell + 2 * d;
                for (int i = 0; i < chunks; ++i) key[c][i] = halves(from + 2 * lanes * i);
            }
            for (int r = 0; r < n; ++r) {
                float* to = products + (r * lanes + first) * lanes;
                __m512 acc[together];
                for (int c = 0; c < together; ++c)
                    acc[c] = d > 0 ? _mm512_loadu_ps(to + c * lanes) : _mm512_setzero_ps();
                for (int i = 0; i < chunks; ++i) {
                    const __m512 x = _mm512_loadu_ps(q[r] + d + lanes * i);
                    for (int c = 0; c < together; ++c) acc[c] = _mm512_fmadd_ps(x, key[c][i], acc[c]);
                }
                for (int c = 0; c < together; ++c) _mm512_storeu_ps(to + c * lanes, acc[c]);
            }
        }
    }

    void multiply(int64_t cell) {
        int64_t d = 0;
        for (; d + 4 * lanes <= a.key_size; d += 4 * lanes) multiply<4>(cell, d);
        for (; d < a.key_size; d += lanes) multiply<1>(cell, d);
    }

    void score(int64_t cell) {
        multiply(cell);
        for (int r = 0; r < n; ++r) {
            const __m512 add = mask[r] ? halves(mask[r] + 2 * cell) : _mm512_setzero_ps();
            const __m512 sum = sum_each(products + r * lanes * lanes);
            const __m512 s = _mm512_fmadd_ps(sum, _mm512_set1_ps(a.scale), add);
            const __mmask16 hidden = _mm512_cmp_ps_mask(add, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ);
            _mm512_storeu_ps(scores + r * stride + cell, _mm512_mask_mov_ps(s, hidden, add));
        }
    }

    // Scores of one row become weights; their sum.
    double normalise(float* row) const {
        __m512 top = _mm512_set1_ps(-INFINITY);
        for (int64_t cell = 0; cell < a.cells; cell += lanes) {
            if (seen[cell / lanes] != Sight::none) top = _mm512_max_ps(top, _mm512_loadu_ps(row + cell));
        }
        const float largest = _mm512_reduce_max_ps(top);
        if (largest == -INFINITY) {
            std::memset(row, 0, static_cast<size_t>(a.cells) * sizeof(float));
            return 0;
        }
        __m512d sum = _mm512_setzero_pd();
        for (int64_t cell = 0; cell < a.cells; cell += lanes) {
            if (seen[cell / lanes] == Sight::none) continue;
            const __m512 p = exp_of(_mm512_sub_ps(_mm512_loadu_ps(row + cell), _mm512_set1_ps(largest)));
            _mm512_storeu_ps(row + cell, p);
            sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(p)));
            sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_extractf32x8_ps(p, 1)));
        }
        double each[8], all = 0;
        _mm512_storeu_pd(each, sum);
        for (const double one : each) all += one;
        return all;
    }

    // sums += weights x values of 16 cells.
    template <int rows>
    void add_values(int64_t cell) {
        int64_t d = 0;
        for (; d + 2 * lanes <= a.value_size; d += 2 * lanes) add_values<rows, 2>(cell, d);
        for (; d < a.value_size; d += lanes) add_values<rows, 1>(cell, d);
    }

    template <int rows, int vectors>
    void add_values(int64_t cell, int64_t d) {
        __m512 acc[rows][vectors];
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < vectors; ++i) acc[r][i] = _mm512_loadu_ps(sums + r * a.value_size + d + lanes * i);
        }
        for (int c = 0; c < lanes; ++c) {
            __m512 x[vectors];
            for (int i = 0; i < vectors; ++i) x[i] = halves(v + (cell + c) * a.v_cell + 2 * (d + lanes * i));
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const __m512 weight = _mm512_set1_ps(scores[r * stride + cell + c]);
                for (int i = 0; i < vectors; ++i) acc[r][i] = _mm512_fmadd_ps(weight, x[i], acc[r][i]);
            }
        }
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < vectors; ++i) _mm512_storeu_ps(sums + r * a.value_size + d + lanes * i, acc[r][i]);
        }
    }
};

}  // namespace

void attend_avx512(const Attention& a, int64_t begin, int64_t end, void* scratch) {
    attend_rows<Rows>(a, begin, end, scratch);
}

}  // namespace medusa::kernels
