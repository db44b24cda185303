// Attention with AVX-512; see attention.cpp for what is computed. Compiled with AVX512 F, BW, DQ and VL.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention_layout.h"
#include "kernels/format.h"

namespace medusa::kernels {
namespace {

#include "kernels/attention.inl"

constexpr int together = 4;  // keys that are multiplied with some rows at a time

inline __m512 halves(const char* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

inline __m512 signed_bytes(__m128i x) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
}

inline __m512 scale_at(const char* block) {
    uint16_t bits;
    std::memcpy(&bits, block, sizeof(bits));
    return _mm512_set1_ps(_cvtsh_ss(bits));
}

// Else GCC loads a key again for each row.
inline void keep_in_register([[maybe_unused]] __m512& x) {
#if defined(__GNUC__)
    __asm__("" : "+v"(x));
#endif
}

// Element 4 * b + i: the sum of quarter b of x[i].
inline __m512 quarters(const __m512 (&x)[together]) {
    const __m512 p = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const __m512 q = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const __m512d pd = _mm512_castps_pd(p), qd = _mm512_castps_pd(q);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(pd, qd)), _mm512_castpd_ps(_mm512_unpackhi_pd(pd, qd)));
}

// Element 4 * k + i: the sum of the quarters of quad[k] that its elements i have.
inline __m512 sum_quarters(const __m512 (&quad)[4]) {
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

inline __m512 tanh_of(__m512 x) {
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1);
    const __m512 e = exp_of(_mm512_mul_ps(_mm512_set1_ps(-2), _mm512_andnot_ps(sign, x)));
    const __m512 size = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    return _mm512_or_ps(_mm512_andnot_ps(sign, size), _mm512_and_ps(sign, x));
}

inline __m512d rounded(__m256 weights) {
    const __m512d grid = _mm512_set1_pd(weight_grid);
    return _mm512_sub_pd(_mm512_add_pd(_mm512_cvtps_pd(weights), grid), grid);
}

struct Avx512 {
    // Which of 16 cells the mask leaves visible, as bits.
    static unsigned visible(const char* mask) {
        const __m256i infinite = _mm256_set1_epi16(static_cast<int16_t>(0xFC00));
        return _mm256_cmpneq_epi16_mask(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask)), infinite);
    }

    static void unpack(CellType type, const char* from, float* to, int64_t size) {
        if (type == CellType::f16) {
            for (int64_t d = 0; d < size; d += lanes) _mm512_storeu_ps(to + d, halves(from + 2 * d));
            return;
        }
        for (int64_t d = 0; d < size; d += quantized_block) {
            const __m512 scale = scale_at(from);
            const auto* bytes = reinterpret_cast<const __m128i*>(from + 2);
            const __m128i first = _mm_loadu_si128(bytes), nibble = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
            __m128i low, high;
            if (type == CellType::q8_0) {
                low = first, high = _mm_loadu_si128(bytes + 1), from += 34;
            } else {
                low = _mm_sub_epi8(_mm_and_si128(first, nibble), eight);
                high = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(first, 4), nibble), eight), from += 18;
            }
            _mm512_storeu_ps(to + d, _mm512_mul_ps(scale, signed_bytes(low)));
            _mm512_storeu_ps(to + d + lanes, _mm512_mul_ps(scale, signed_bytes(high)));
        }
    }

    // Products of some rows with 16 keys.
    template <int rows>
    static void multiply(const float* keys, int64_t size, const float* const* q, float* to) {
        const float* x[rows];
        for (int r = 0; r < rows; ++r) x[r] = q[r];
        __m512 quad[rows][4];  // in memory: registers are for sums
#pragma GCC unroll 1
        for (int k = 0; k < 4; ++k, keys += together * size) {
            const float *key0 = keys, *key1 = key0 + size, *key2 = key1 + size, *key3 = key2 + size;
            __m512 acc[rows][together];
            for (auto& row : acc) {
                for (__m512& one : row) one = _mm512_setzero_ps();
            }
            for (int64_t d = 0; d < size; d += lanes) {
                __m512 key[together] = {_mm512_loadu_ps(key0 + d), _mm512_loadu_ps(key1 + d), _mm512_loadu_ps(key2 + d),
                                        _mm512_loadu_ps(key3 + d)};
                for (__m512& one : key) keep_in_register(one);
#pragma GCC unroll 4
                for (int r = 0; r < rows; ++r) {
                    const __m512 part = _mm512_loadu_ps(x[r] + d);
                    for (int c = 0; c < together; ++c) acc[r][c] = _mm512_fmadd_ps(part, key[c], acc[r][c]);
                }
            }
            for (int r = 0; r < rows; ++r) quad[r][k] = quarters(acc[r]);
        }
        for (int r = 0; r < rows; ++r) _mm512_storeu_ps(to + r * lanes, sum_quarters(quad[r]));
    }

    static void multiply(const float* keys, int64_t size, const float* const* q, int64_t rows, float* to) {
        for (int64_t tiles = (rows + 3) / 4; rows > 0; --tiles) {
            const int64_t n = (rows + tiles - 1) / tiles;
            switch (n) {
                case 1:
                    multiply<1>(keys, size, q, to);
                    break;
                case 2:
                    multiply<2>(keys, size, q, to);
                    break;
                case 3:
                    multiply<3>(keys, size, q, to);
                    break;
                default:
                    multiply<4>(keys, size, q, to);
            }
            rows -= n, q += n, to += n * lanes;
        }
    }

    // Products with 16 keys become scores.
    static void finish(float* at, const char* mask, float scale, float cap) {
        const __m512 add = mask ? halves(mask) : _mm512_setzero_ps(), x = _mm512_loadu_ps(at);
        const __m512 factor = _mm512_set1_ps(scale);
        const __m512 score = cap != 0 ? _mm512_fmadd_ps(_mm512_set1_ps(cap), tanh_of(_mm512_mul_ps(x, factor)), add)
                                      : _mm512_fmadd_ps(x, factor, add);
        const __mmask16 hidden = _mm512_cmp_ps_mask(add, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ);
        _mm512_storeu_ps(at, _mm512_mask_mov_ps(score, hidden, add));
    }

    static void raise(uint16_t* most, const char* values, size_t stride, int count, int64_t size) {
        int64_t d = 0;
        for (; d + 8 * lanes <= size; d += 8 * lanes) raise<4>(most + d, values + 2 * d, stride, count);
        for (; d + 4 * lanes <= size; d += 4 * lanes) raise<2>(most + d, values + 2 * d, stride, count);
        const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
        for (; d < size; d += lanes) {
            auto* at = reinterpret_cast<__m256i*>(most + d);
            __m256i all = _mm256_loadu_si256(at);
            const char* from = values + 2 * d;
            for (int c = 0; c < count; ++c, from += stride) {
                const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
                all = _mm256_max_epu16(all, _mm256_and_si256(x, magnitude));
            }
            _mm256_storeu_si256(at, all);
        }
    }

    template <int vectors>
    static void raise(uint16_t* most, const char* values, size_t stride, int count) {
        const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
        __m512i all[vectors];
        for (int i = 0; i < vectors; ++i) all[i] = _mm512_loadu_si512(most + 2 * lanes * i);
#pragma GCC unroll 1
        for (int c = 0; c < count; ++c, values += stride) {
            for (int i = 0; i < vectors; ++i) {
                const __m512i x = _mm512_and_si512(_mm512_loadu_si512(values + 64 * i), magnitude);
                all[i] = _mm512_max_epu16(all[i], x);
            }
        }
        for (int i = 0; i < vectors; ++i) _mm512_storeu_si512(most + 2 * lanes * i, all[i]);
    }

    static float largest(const float* scores, int64_t blocks, int64_t stride) {
        __m512 top = _mm512_set1_ps(-INFINITY);
        for (int64_t i = 0; i < blocks; ++i) top = _mm512_max_ps(top, _mm512_loadu_ps(scores + i * stride));
        return _mm512_reduce_max_ps(top);
    }

    // Scores become weights; their sum.
    static double weigh(float* scores, int64_t blocks, int64_t stride, float largest) {
        if (largest == -INFINITY) {
            for (int64_t i = 0; i < blocks; ++i) std::memset(scores + i * stride, 0, lanes * sizeof(float));
            return 0;
        }
        __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
        for (int64_t i = 0; i < blocks; ++i, scores += stride) {
            const __m512 p = exp_of(_mm512_sub_ps(_mm512_loadu_ps(scores), _mm512_set1_ps(largest)));
            _mm512_storeu_ps(scores, p);
            low = _mm512_add_pd(low, rounded(_mm512_castps512_ps256(p)));
            high = _mm512_add_pd(high, rounded(_mm512_extractf32x8_ps(p, 1)));
        }
        return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
    }

    static double weight_of(float score) {
        const __m512 p = exp_of(_mm512_set1_ps(score));
        return _mm512_cvtsd_f64(rounded(_mm512_castps512_ps256(p)));
    }

    // sums += weights x values of 16 cells.
    template <int rows>
    static void add(float* sums, const float* weights, const float* x, int64_t size) {
        constexpr int vectors = rows > 4 ? 2 : 4;
        int64_t d = 0;
        for (; d + vectors * lanes <= size; d += vectors * lanes) {
            add<rows, vectors>(sums + d, weights, x + d, size);
        }
        for (; d < size; d += lanes) add<rows, 1>(sums + d, weights, x + d, size);
    }

    template <int rows, int vectors>
    static void add(float* sums, const float* weights, const float* x, int64_t size) {
        __m512 acc[rows][vectors];
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < vectors; ++i) acc[r][i] = _mm512_loadu_ps(sums + r * size + lanes * i);
        }
        for (int c = 0; c < lanes; ++c, x += size) {
            __m512 value[vectors];
            for (int i = 0; i < vectors; ++i) value[i] = _mm512_loadu_ps(x + lanes * i);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const __m512 weight = _mm512_set1_ps(weights[r * lanes + c]);
                for (int i = 0; i < vectors; ++i) acc[r][i] = _mm512_fmadd_ps(weight, value[i], acc[r][i]);
            }
        }
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < vectors; ++i) _mm512_storeu_ps(sums + r * size + lanes * i, acc[r][i]);
        }
    }
};

}  // namespace

void attend_avx512(const Attention& a, const AttentionShare& share, int phase) {
    Part<Avx512>(a, share).run(phase);
}

}  // namespace medusa::kernels
