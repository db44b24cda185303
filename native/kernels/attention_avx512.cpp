// Attention with AVX-512; see attention.cpp for what is computed. Compiled with AVX512 F, BW, DQ and VL.
#include "kernels/attention.inl"

namespace medusa::kernels {
namespace {

constexpr int together = 4;  // keys, or vectors of a value, multiplied with some rows at a time

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

// Otherwise GCC loads a number again for each row.
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

template <int count>
inline void exp_of(__m512 (&x)[count]) {
    using namespace exponential;
    __m512 n[count], r[count], p[count];
    for (int i = 0; i < count; ++i) {
        n[i] = _mm512_roundscale_ps(_mm512_mul_ps(x[i], _mm512_set1_ps(log2e)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        r[i] = _mm512_fnmadd_ps(n[i], _mm512_set1_ps(ln2_high), x[i]);
        r[i] = _mm512_fnmadd_ps(n[i], _mm512_set1_ps(ln2_low), r[i]);
        p[i] = _mm512_set1_ps(taylor[0]);
    }
#pragma GCC unroll 6
    for (int term = 1; term < 7; ++term) {
        for (int i = 0; i < count; ++i) p[i] = _mm512_fmadd_ps(p[i], r[i], _mm512_set1_ps(taylor[term]));
    }
    for (int i = 0; i < count; ++i) {
        const __mmask16 tiny = _mm512_cmp_ps_mask(x[i], _mm512_set1_ps(smallest), _CMP_LT_OQ);
        const __m512i odd = _mm512_or_si512(_mm512_castps_si512(_mm512_scalef_ps(p[i], n[i])), _mm512_set1_epi32(1));
        x[i] = _mm512_mask_mov_ps(_mm512_castsi512_ps(odd), tiny, _mm512_setzero_ps());
    }
}

inline __m512 exp_of(__m512 x) {
    __m512 one[1] = {x};
    exp_of(one);
    return one[0];
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
    static constexpr int tile = 6;  // rows: their sums of products with `together` vectors fill 24 registers

    struct Halves {
        static constexpr int64_t bytes = 2;
        static __m512 load(const char* at) { return halves(at); }
    };
    struct Floats {
        static constexpr int64_t bytes = 4;
        static __m512 load(const char* at) { return _mm512_loadu_ps(at); }
    };

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
    template <int rows, typename Type>
    static void multiply(const Block& keys, const Later* later, int64_t size, const float* q, float* to) {
        __m512 quad[rows][4];  // in memory: registers are for sums
        const char* at = keys.at;
#pragma GCC unroll 1
        for (int k = 0; k < 4; ++k, at += together * keys.stride) {
            const char* key[together] = {at, at + keys.stride, at + 2 * keys.stride, at + 3 * keys.stride};
            __m512 acc[rows][together];
            for (auto& row : acc) {
                for (__m512& one : row) one = _mm512_setzero_ps();
            }
            for (int64_t d = 0; d < size; d += lanes) {
                __m512 x[together];
                for (int c = 0; c < together; ++c) x[c] = Type::load(key[c] + Type::bytes * d);
                if (d < together * lanes) {  // for each, one cell with each of the first vectors
                    later[0].fetch(together * k + d / lanes), later[1].fetch(together * k + d / lanes);
                }
                for (__m512& one : x) keep_in_register(one);
#pragma GCC unroll 6
                for (int r = 0; r < rows; ++r) {
                    const __m512 part = _mm512_loadu_ps(q + r * size + d);
                    for (int c = 0; c < together; ++c) acc[r][c] = _mm512_fmadd_ps(part, x[c], acc[r][c]);
                }
            }
            for (int r = 0; r < rows; ++r) quad[r][k] = quarters(acc[r]);
        }
        for (int r = 0; r < rows; ++r) _mm512_storeu_ps(to + r * lanes, sum_quarters(quad[r]));
    }

    // Turns products of some rows with 16 keys into scores.
    static void finish(float* at, int64_t rows, const char* const* mask, int64_t cell, float scale, float cap,
                       float* largest) {
        const __m512 factor = _mm512_set1_ps(scale), infinite = _mm512_set1_ps(-INFINITY);
        for (int64_t r = 0; r < rows; ++r, at += lanes, largest += lanes) {
            const __m512 add = mask ? halves(mask[r] + 2 * cell) : _mm512_setzero_ps(), x = _mm512_loadu_ps(at);
            const __m512 score = cap != 0 ? _mm512_fmadd_ps(_mm512_set1_ps(cap), tanh_of(_mm512_mul_ps(x, factor)), add)
                                          : _mm512_fmadd_ps(x, factor, add);
            const __m512 seen = _mm512_mask_mov_ps(score, _mm512_cmp_ps_mask(add, infinite, _CMP_EQ_OQ), add);
            _mm512_storeu_ps(at, seen);
            _mm512_storeu_ps(largest, _mm512_max_ps(seen, _mm512_loadu_ps(largest)));
        }
    }

    static void raise(uint16_t* most, const Block& values, int count, int64_t size) {
        int64_t d = 0;
        for (; d + 4 * lanes <= size; d += 4 * lanes) raise<2>(most + d, values, 2 * d, count);
        const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
        for (; d < size; d += lanes) {
            auto* at = reinterpret_cast<__m256i*>(most + d);
            __m256i all = _mm256_loadu_si256(at);
            const char* from = values.at + 2 * d;
            for (int c = 0; c < count; ++c, from += values.stride) {
                const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
                all = _mm256_max_epu16(all, _mm256_and_si256(x, magnitude));
            }
            _mm256_storeu_si256(at, all);
        }
    }

    template <int vectors>
    static void raise(uint16_t* most, const Block& values, int64_t byte, int count) {
        const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
        const char* from = values.at + byte;
        __m512i all[vectors];
        for (int i = 0; i < vectors; ++i) all[i] = _mm512_loadu_si512(most + 2 * lanes * i);
        for (int c = 0; c < count; ++c, from += values.stride) {
            for (int i = 0; i < vectors; ++i) {
                const __m512i x = _mm512_and_si512(_mm512_loadu_si512(from + 64 * i), magnitude);
                all[i] = _mm512_max_epu16(all[i], x);
            }
        }
        for (int i = 0; i < vectors; ++i) _mm512_storeu_si512(most + 2 * lanes * i, all[i]);
    }

    // Turns scores of all rows into weights, block by block; adds their sums.
    static void weigh(float* scores, int64_t blocks, int64_t rows, const float* largest, double* sums) {
        int64_t row = 0, left = blocks * rows;
        for (; left >= together; left -= together, scores += together * lanes) {
            row = weigh<together>(scores, row, rows, largest, sums);
        }
        for (; left > 0; --left, scores += lanes) row = weigh<1>(scores, row, rows, largest, sums);
    }

    // `count` vectors at once, from that of `row` on: each is a long chain of operations. Returns the row after them.
    template <int count>
    static int64_t weigh(float* scores, int64_t row, int64_t rows, const float* largest, double* sums) {
        __m512 x[count];
        int64_t each[count];
        for (int i = 0; i < count; ++i) {
            each[i] = row, row = row + 1 == rows ? 0 : row + 1;
            x[i] = _mm512_sub_ps(_mm512_loadu_ps(scores + i * lanes), _mm512_set1_ps(largest[each[i] * lanes]));
        }
        exp_of(x);
        for (int i = 0; i < count; ++i) {
            _mm512_storeu_ps(scores + i * lanes, x[i]);
            const __m512d low = rounded(_mm512_castps512_ps256(x[i])), high = rounded(_mm512_extractf32x8_ps(x[i], 1));
            double* sum = sums + each[i] * lanes / 2;
            _mm512_storeu_pd(sum, _mm512_add_pd(_mm512_loadu_pd(sum), _mm512_add_pd(low, high)));
        }
        return row;
    }

    static double weight_of(float score) {
        const __m512 p = exp_of(_mm512_set1_ps(score));
        return _mm512_cvtsd_f64(rounded(_mm512_castps512_ps256(p)));
    }

    // sums += weights x values of 16 cells.
    template <int rows, typename Type>
    static void add(const Block& values, const Later& later, int64_t size, const float* weights, float* sums) {
        int64_t d = 0;
        for (; d + together * lanes <= size; d += together * lanes) {
            add<rows, together, Type>(values, later, d, size, weights, sums + d);
        }
        for (; d < size; d += lanes) add<rows, 1, Type>(values, later, d, size, weights, sums + d);
    }

    template <int rows, int vectors, typename Type>
    static void add(const Block& values, const Later& later, int64_t d, int64_t size, const float* weights,
                    float* sums) {
        __m512 acc[rows][vectors];
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < vectors; ++i) acc[r][i] = _mm512_loadu_ps(sums + r * size + lanes * i);
        }
        const char* at = values.at + Type::bytes * d;
#pragma GCC unroll 1
        for (int c = 0; c < lanes; ++c, at += values.stride) {
            __m512 x[vectors];
            for (int i = 0; i < vectors; ++i) x[i] = Type::load(at + Type::bytes * lanes * i);
            if (d == 0) later.fetch(c);
            for (__m512& one : x) keep_in_register(one);
#pragma GCC unroll 6
            for (int r = 0; r < rows; ++r) {
                const __m512 weight = _mm512_set1_ps(weights[r * lanes + c]);
                for (int i = 0; i < vectors; ++i) acc[r][i] = _mm512_fmadd_ps(weight, x[i], acc[r][i]);
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
