// Attention with AVX-512; see attention.cpp for what is computed. Compiled with AVX512 F, BW, DQ and VL.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention.h"
#include "format.h"

namespace medusa::kernels {
namespace {

#include "attention.inl"

inline __m512 halves(const char* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// Lane i: the sum over all lanes of a[i].
inline __m512 sum_each(const __m512 (&a)[lanes]) {
    __m512 quad[4];  // lane 4 * b + i of quad[k]: the sum of quarter b of a[4 * k + i]
    for (int k = 0; k < 4; ++k) {
        const __m512* x = a + 4 * k;
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
    return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), tiny, _mm512_setzero_ps());
}

struct Rows : Tile {
    using Tile::Tile;

    bool sees(int64_t cell) const {
        if (!a.mask) return true;
        const __m256i hidden = _mm256_set1_epi16(static_cast<int16_t>(0xFC00));  // -infinity
        for (int r = 0; r < n; ++r) {
            const __m256i m = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask[r] + 2 * cell));
            if (_mm256_cmpneq_epi16_mask(m, hidden)) return true;
        }
        return false;
    }

    void score() {
        for (int64_t cell = 0; cell < a.cells; cell += lanes) {
            if (!(visible[cell / lanes] = sees(cell))) continue;
            for (int c = 0; c < lanes; ++c) {
                const char* key = k + (cell + c) * a.k_cell;
                for (int64_t d = 0; d < a.key_size; d += lanes) {
                    _mm512_storeu_ps(keys + c * a.key_size + d, halves(key + 2 * d));
                }
            }
            for (int r = 0; r < n; ++r) {
                __m512 acc[lanes];
                for (int c = 0; c < lanes; ++c) acc[c] = _mm512_setzero_ps();
                for (int64_t d = 0; d < a.key_size; d += lanes) {
                    const __m512 x = _mm512_loadu_ps(q[r] + d);
#pragma GCC unroll 16
                    for (int c = 0; c < lanes; ++c) {
                        acc[c] = _mm512_fmadd_ps(x, _mm512_loadu_ps(keys + c * a.key_size + d), acc[c]);
                    }
                }
                const __m512 add = mask[r] ? halves(mask[r] + 2 * cell) : _mm512_setzero_ps();
                const __m512 s = _mm512_fmadd_ps(sum_each(acc), _mm512_set1_ps(a.scale), add);
                const __mmask16 hidden = _mm512_cmp_ps_mask(add, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ);
                _mm512_storeu_ps(scores + r * a.cells + cell, _mm512_mask_mov_ps(s, hidden, add));
            }
        }
    }

    // Scores of one row become weights; their sum.
    double normalise(float* row) const {
        __m512 most = _mm512_set1_ps(-INFINITY);
        for (int64_t cell = 0; cell < a.cells; cell += lanes) {
            if (visible[cell / lanes]) most = _mm512_max_ps(most, _mm512_loadu_ps(row + cell));
        }
        const float largest = _mm512_reduce_max_ps(most);
        if (largest == -INFINITY) {
            std::memset(row, 0, static_cast<size_t>(a.cells) * sizeof(float));
            return 0;
        }
        __m512d sum = _mm512_setzero_pd();
        for (int64_t cell = 0; cell < a.cells; cell += lanes) {
            if (!visible[cell / lanes]) continue;
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

    // sums += weights x values of 16 cells. In double precision, the order of the cells is lost in the rounding to
    // float.
    template <int rows>
    void add_values(int64_t cell) {
        for (int r = 0; r < rows; ++r) {
            const __m512 p = _mm512_loadu_ps(scores + r * a.cells + cell);
            _mm512_storeu_pd(weights + r * lanes, _mm512_cvtps_pd(_mm512_castps512_ps256(p)));
            _mm512_storeu_pd(weights + r * lanes + 8, _mm512_cvtps_pd(_mm512_extractf32x8_ps(p, 1)));
        }
        for (int64_t d = 0; d < a.value_size; d += 8) {
            __m512d acc[rows];
            for (int r = 0; r < rows; ++r) acc[r] = _mm512_loadu_pd(sums + r * a.value_size + d);
            for (int c = 0; c < lanes; ++c) {
                const char* value = v + (cell + c) * a.v_cell + 2 * d;
                const __m512d x =
                    _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(value))));
                for (int r = 0; r < rows; ++r) {
                    acc[r] = _mm512_fmadd_pd(_mm512_set1_pd(weights[r * lanes + c]), x, acc[r]);
                }
            }
            for (int r = 0; r < rows; ++r) _mm512_storeu_pd(sums + r * a.value_size + d, acc[r]);
        }
    }

    // sums of one row x factor are its output.
    void write(int r, double factor) const {
        const __m512d by = _mm512_set1_pd(factor);
        for (int64_t d = 0; d < a.value_size; d += 8) {
            const __m512d value = _mm512_mul_pd(_mm512_loadu_pd(sums + r * a.value_size + d), by);
            _mm256_storeu_ps(out[r] + d, _mm512_cvtpd_ps(value));
        }
    }
};

}  // namespace

void attend_avx512(const Attention& a, int64_t begin, int64_t end, void* scratch) {
    attend_rows<Rows>(a, begin, end, scratch);
}

}  // namespace medusa::kernels
