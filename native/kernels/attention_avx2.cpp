// Attention with AVX2; see attention.cpp for what is computed. Compiled with AVX2, FMA and F16C; nothing here may run
// before select_kernels() has seen them.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/format.h"

namespace medusa::kernels {
namespace {

#include "kernels/attention.inl"

constexpr int together = 4;  // cells whose products with a row are summed together

inline __m256 halves(const char* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// Two quarters of four sums of 16 lanes: element i of the low half is the first quarter of a[i], the high half has the
// second ones.
inline __m256 quarters(const __m256 (&a)[together]) {
    const __m256 p = _mm256_add_ps(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
    const __m256 q = _mm256_add_ps(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
    const __m256d pd = _mm256_castps_pd(p), qd = _mm256_castps_pd(q);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(pd, qd)), _mm256_castpd_ps(_mm256_unpackhi_pd(pd, qd)));
}

// Element i: the sum over the 16 lanes of low[i] and high[i].
inline __m128 sum_each(const __m256 (&low)[together], const __m256 (&high)[together]) {
    const auto halves_of = [](__m256 x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); };
    return _mm_add_ps(halves_of(quarters(low)), halves_of(quarters(high)));
}

inline __m256 exp_of(__m256 x) {
    using namespace exponential;
    const __m256 n =
        _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(log2e)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(ln2_low), _mm256_fnmadd_ps(n, _mm256_set1_ps(ln2_high), x));
    __m256 p = _mm256_set1_ps(taylor[0]);
    for (int i = 1; i < 7; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(taylor[i]));
    // Neither 2^n nor the product is denormal: x is above `smallest`.
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(smallest), _CMP_LT_OQ);
    const __m256 odd =
        _mm256_or_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(power)), _mm256_castsi256_ps(_mm256_set1_epi32(1)));
    return _mm256_andnot_ps(tiny, odd);
}

struct Rows : Tile {
    using Tile::Tile;

    Sight sees(int64_t cell) const {
        if (!a.mask) return Sight::all;
        const __m256i infinite = _mm256_set1_epi16(static_cast<int16_t>(0xFC00));
        int none = -1, some = 0;  // two bits a cell: hidden from all rows, from some
        for (int r = 0; r < n; ++r) {
            const __m256i m = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask[r] + 2 * cell));
            const int hidden = _mm256_movemask_epi8(_mm256_cmpeq_epi16(m, infinite));
            none &= hidden, some |= hidden;
        }
        return some == 0 ? Sight::all : none == -1 ? Sight::none : Sight::some;
    }

    // Products of one row with `together` of the keys.
    __m128 products_of(const float* x, const float* key) const {
        __m256 low[together], high[together];
        for (int c = 0; c < together; ++c) low[c] = high[c] = _mm256_setzero_ps();
        for (int64_t d = 0; d < a.key_size; d += lanes) {
            const __m256 x0 = _mm256_loadu_ps(x + d), x1 = _mm256_loadu_ps(x + d + 8);
#pragma GCC unroll 4
            for (int c = 0; c < together; ++c) {
                low[c] = _mm256_fmadd_ps(x0, _mm256_loadu_ps(key + c * a.key_size + d), low[c]);
                high[c] = _mm256_fmadd_ps(x1, _mm256_loadu_ps(key + c * a.key_size + d + 8), high[c]);
            }
        }
        return sum_each(low, high);
    }

    void score(int64_t cell) {
        const __m256 infinite = _mm256_set1_ps(-INFINITY), scale = _mm256_set1_ps(a.scale);
        for (int c = 0; c < lanes; ++c) {
            const char* key = k + (cell + c) * a.k_cell;
            for (int64_t d = 0; d < a.key_size; d += 8) {
                _mm256_storeu_ps(keys + c * a.key_size + d, halves(key + 2 * d));
            }
        }
        for (int r = 0; r < n; ++r) {
            for (int c = 0; c < lanes; c += 8) {
                const __m256 add = mask[r] ? halves(mask[r] + 2 * (cell + c)) : _mm256_setzero_ps();
                const __m256 product = _mm256_set_m128(products_of(q[r], keys + (c + together) * a.key_size),
                                                       products_of(q[r], keys + c * a.key_size));
                const __m256 s = _mm256_fmadd_ps(product, scale, add);
                const __m256 hidden = _mm256_cmp_ps(add, infinite, _CMP_EQ_OQ);
                _mm256_storeu_ps(scores + r * stride + cell + c, _mm256_blendv_ps(s, add, hidden));
            }
        }
    }

    // Scores of one row become weights; their sum.
    double normalise(float* row) const {
        __m256 top = _mm256_set1_ps(-INFINITY);
        for (int64_t cell = 0; cell < a.cells; cell += 8) {
            if (seen[cell / lanes] != Sight::none) top = _mm256_max_ps(_mm256_loadu_ps(row + cell), top);
        }
        float each_top[8];
        _mm256_storeu_ps(each_top, top);
        const float largest = *std::max_element(each_top, each_top + 8);
        if (largest == -INFINITY) {
            std::memset(row, 0, static_cast<size_t>(a.cells) * sizeof(float));
            return 0;
        }
        __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
        for (int64_t cell = 0; cell < a.cells; cell += 8) {
            if (seen[cell / lanes] == Sight::none) continue;
            const __m256 p = exp_of(_mm256_sub_ps(_mm256_loadu_ps(row + cell), _mm256_set1_ps(largest)));
            _mm256_storeu_ps(row + cell, p);
            low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(p)));
            high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(p, 1)));
        }
        double each[8], all = 0;
        _mm256_storeu_pd(each, low);
        _mm256_storeu_pd(each + 4, high);
        for (const double one : each) all += one;
        return all;
    }

    // sums += weights x values of 16 cells.
    template <int rows>
    void add_values(int64_t cell) {
        for (int64_t d = 0; d < a.value_size; d += 8) {
            __m256 acc[rows];
            for (int r = 0; r < rows; ++r) acc[r] = _mm256_loadu_ps(sums + r * a.value_size + d);
            for (int c = 0; c < lanes; ++c) {
                const __m256 x = halves(v + (cell + c) * a.v_cell + 2 * d);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) {
                    acc[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(scores + r * stride + cell + c), x, acc[r]);
                }
            }
            for (int r = 0; r < rows; ++r) _mm256_storeu_ps(sums + r * a.value_size + d, acc[r]);
        }
    }
};

}  // namespace

void attend_avx2(const Attention& a, int64_t begin, int64_t end, void* scratch) {
    attend_rows<Rows>(a, begin, end, scratch);
}

}  // namespace medusa::kernels
