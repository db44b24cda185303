// Attention with AVX2; see attention.cpp for what is computed. Compiled with AVX2, FMA and F16C; nothing here may run
// before select_kernels() has seen them.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention_layout.h"
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

inline __m256 signed_bytes(__m128i x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
}

inline __m256 scale_at(const char* block) {
    uint16_t bits;
    std::memcpy(&bits, block, sizeof(bits));
    return _mm256_set1_ps(_cvtsh_ss(bits));
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

inline __m256 tanh_of(__m256 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1);
    const __m256 e = exp_of(_mm256_mul_ps(_mm256_set1_ps(-2), _mm256_andnot_ps(sign, x)));
    const __m256 size = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    return _mm256_or_ps(_mm256_andnot_ps(sign, size), _mm256_and_ps(sign, x));
}

inline __m256d rounded(__m128 weights) {
    const __m256d grid = _mm256_set1_pd(weight_grid);
    return _mm256_sub_pd(_mm256_add_pd(_mm256_cvtps_pd(weights), grid), grid);
}

struct Avx2 {
    // Which of 16 cells the mask leaves visible, as bits.
    static unsigned visible(const char* mask) {
        const __m256i infinite = _mm256_set1_epi16(static_cast<int16_t>(0xFC00));
        const __m256i m = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask));
        const __m256i hidden = _mm256_cmpeq_epi16(m, infinite);
        const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(hidden), _mm256_extracti128_si256(hidden, 1));
        return static_cast<unsigned>(_mm_movemask_epi8(bytes)) ^ 0xFFFF;
    }

    static void unpack(CellType type, const char* from, float* to, int64_t size) {
        if (type == CellType::f16) {
            for (int64_t d = 0; d < size; d += 8) _mm256_storeu_ps(to + d, halves(from + 2 * d));
            return;
        }
        for (int64_t d = 0; d < size; d += quantized_block) {
            const __m256 scale = scale_at(from);
            const auto* bytes = reinterpret_cast<const __m128i*>(from + 2);
            const __m128i first = _mm_loadu_si128(bytes), nibble = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
            __m128i low, high;
            if (type == CellType::q8_0) {
                low = first, high = _mm_loadu_si128(bytes + 1), from += 34;
            } else {
                low = _mm_sub_epi8(_mm_and_si128(first, nibble), eight);
                high = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(first, 4), nibble), eight), from += 18;
            }
            _mm256_storeu_ps(to + d, _mm256_mul_ps(scale, signed_bytes(low)));
            _mm256_storeu_ps(to + d + 8, _mm256_mul_ps(scale, signed_bytes(_mm_srli_si128(low, 8))));
            _mm256_storeu_ps(to + d + 16, _mm256_mul_ps(scale, signed_bytes(high)));
            _mm256_storeu_ps(to + d + 24, _mm256_mul_ps(scale, signed_bytes(_mm_srli_si128(high, 8))));
        }
    }

    // Products of one row with `together` of the keys.
    static __m128 products_of(const float* x, const float* keys, int64_t size) {
        __m256 low[together], high[together];
        for (int c = 0; c < together; ++c) low[c] = high[c] = _mm256_setzero_ps();
        for (int64_t d = 0; d < size; d += lanes) {
            const __m256 x0 = _mm256_loadu_ps(x + d), x1 = _mm256_loadu_ps(x + d + 8);
#pragma GCC unroll 4
            for (int c = 0; c < together; ++c) {
                low[c] = _mm256_fmadd_ps(x0, _mm256_loadu_ps(keys + c * size + d), low[c]);
                high[c] = _mm256_fmadd_ps(x1, _mm256_loadu_ps(keys + c * size + d + 8), high[c]);
            }
        }
        return sum_each(low, high);
    }

    // Products of some rows with 16 keys.
    static void multiply(const float* keys, int64_t size, const float* const* q, int64_t rows, float* to) {
        for (int64_t r = 0; r < rows; ++r) {
            for (int c = 0; c < lanes; c += together) {
                _mm_storeu_ps(to + r * lanes + c, products_of(q[r], keys + c * size, size));
            }
        }
    }

    // Products with 16 keys become scores.
    static void finish(float* at, const char* mask, float scale, float cap) {
        const __m256 infinite = _mm256_set1_ps(-INFINITY), factor = _mm256_set1_ps(scale);
        for (int c = 0; c < lanes; c += 8) {
            const __m256 add = mask ? halves(mask + 2 * c) : _mm256_setzero_ps(), x = _mm256_loadu_ps(at + c);
            const __m256 score = cap != 0 ? _mm256_fmadd_ps(_mm256_set1_ps(cap), tanh_of(_mm256_mul_ps(x, factor)), add)
                                          : _mm256_fmadd_ps(x, factor, add);
            _mm256_storeu_ps(at + c, _mm256_blendv_ps(score, add, _mm256_cmp_ps(add, infinite, _CMP_EQ_OQ)));
        }
    }

    static void raise(uint16_t* most, const char* values, size_t stride, int count, int64_t size) {
        for (int64_t d = 0; d < size; d += lanes) {
            auto* at = reinterpret_cast<__m256i*>(most + d);
            __m256i all = _mm256_loadu_si256(at);
            for (int c = 0; c < count; ++c) {
                const auto* from = reinterpret_cast<const __m256i*>(values + static_cast<size_t>(c) * stride + 2 * d);
                all = _mm256_max_epu16(all, _mm256_and_si256(_mm256_loadu_si256(from), _mm256_set1_epi16(0x7FFF)));
            }
            _mm256_storeu_si256(at, all);
        }
    }

    static float largest(const float* scores, int64_t blocks, int64_t stride) {
        __m256 top = _mm256_set1_ps(-INFINITY);
        for (int64_t i = 0; i < blocks; ++i, scores += stride) {
            top = _mm256_max_ps(_mm256_max_ps(_mm256_loadu_ps(scores), _mm256_loadu_ps(scores + 8)), top);
        }
        float each[8];
        _mm256_storeu_ps(each, top);
        return *std::max_element(each, each + 8);
    }

    // Scores become weights; their sum.
    static double weigh(float* scores, int64_t blocks, int64_t stride, float largest) {
        if (largest == -INFINITY) {
            for (int64_t i = 0; i < blocks; ++i) std::memset(scores + i * stride, 0, lanes * sizeof(float));
            return 0;
        }
        __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
        for (int64_t i = 0; i < 2 * blocks; ++i) {
            float* at = scores + i / 2 * stride + i % 2 * 8;
            const __m256 p = exp_of(_mm256_sub_ps(_mm256_loadu_ps(at), _mm256_set1_ps(largest)));
            _mm256_storeu_ps(at, p);
            low = _mm256_add_pd(low, rounded(_mm256_castps256_ps128(p)));
            high = _mm256_add_pd(high, rounded(_mm256_extractf128_ps(p, 1)));
        }
        double each[4];
        _mm256_storeu_pd(each, _mm256_add_pd(low, high));
        return each[0] + each[1] + each[2] + each[3];
    }

    static double weight_of(float score) {
        return _mm256_cvtsd_f64(rounded(_mm256_castps256_ps128(exp_of(_mm256_set1_ps(score)))));
    }

    // sums += weights x values of 16 cells.
    template <int rows>
    static void add(float* sums, const float* weights, const float* x, int64_t size) {
        constexpr int vectors = rows > 4 ? 1 : 2;
        for (int64_t d = 0; d < size; d += 8 * vectors) {
            __m256 acc[rows][vectors];
            for (int r = 0; r < rows; ++r) {
                for (int i = 0; i < vectors; ++i) acc[r][i] = _mm256_loadu_ps(sums + r * size + d + 8 * i);
            }
            for (int c = 0; c < lanes; ++c) {
                __m256 value[vectors];
                for (int i = 0; i < vectors; ++i) value[i] = _mm256_loadu_ps(x + c * size + d + 8 * i);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) {
                    const __m256 weight = _mm256_broadcast_ss(weights + r * lanes + c);
                    for (int i = 0; i < vectors; ++i) acc[r][i] = _mm256_fmadd_ps(weight, value[i], acc[r][i]);
                }
            }
            for (int r = 0; r < rows; ++r) {
                for (int i = 0; i < vectors; ++i) _mm256_storeu_ps(sums + r * size + d + 8 * i, acc[r][i]);
            }
        }
    }
};

}  // namespace

void attend_avx2(const Attention& a, const AttentionShare& share, int phase) {
    Part<Avx2>(a, share).run(phase);
}

}  // namespace medusa::kernels
