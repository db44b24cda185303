// Attention with AVX2; see attention.cpp for what is computed. Compiled with AVX2, FMA and F16C; nothing here may run
// before select_kernels() has seen them.
#include "kernels/attention.inl"

namespace medusa::kernels {
namespace {

constexpr int together = 4;  // keys, or vectors of a value, multiplied with some rows at a time

inline __m256 halves(const char* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// Two quarters of four sums of 16 lanes: element i of the low half is the first quarter of a[i]; the high half has the
// second quarters.
inline __m256 quarters(const __m256 (&a)[together]) {
    const __m256 p = _mm256_add_ps(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
    const __m256 q = _mm256_add_ps(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
    const __m256d pd = _mm256_castps_pd(p), qd = _mm256_castps_pd(q);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(pd, qd)), _mm256_castpd_ps(_mm256_unpackhi_pd(pd, qd)));
}

// Element i: the sum over the 16 lanes of key i, given both quarters of their low and high halves.
inline __m128 sum_each(__m256 low, __m256 high) {
    const auto halves_of = [](__m256 x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); };
    return _mm_add_ps(halves_of(low), halves_of(high));
}

inline __m256 signed_bytes(__m128i x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
}

inline __m256 scale_at(const char* block) {
    uint16_t bits;
    std::memcpy(&bits, block, sizeof(bits));
    return _mm256_set1_ps(_cvtsh_ss(bits));
}

template <int count>
inline void exp_of(__m256 (&x)[count]) {
    using namespace exponential;
    __m256 n[count], r[count], p[count];
    for (int i = 0; i < count; ++i) {
        n[i] =
            _mm256_round_ps(_mm256_mul_ps(x[i], _mm256_set1_ps(log2e)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        r[i] = _mm256_fnmadd_ps(n[i], _mm256_set1_ps(ln2_high), x[i]);
        r[i] = _mm256_fnmadd_ps(n[i], _mm256_set1_ps(ln2_low), r[i]);
        p[i] = _mm256_set1_ps(taylor[0]);
    }
#pragma GCC unroll 6
    for (int term = 1; term < 7; ++term) {
        for (int i = 0; i < count; ++i) p[i] = _mm256_fmadd_ps(p[i], r[i], _mm256_set1_ps(taylor[term]));
    }
    for (int i = 0; i < count; ++i) {
        // Neither 2^n nor the product is denormal: x is above `smallest`.
        const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n[i]), _mm256_set1_epi32(127)), 23);
        const __m256 tiny = _mm256_cmp_ps(x[i], _mm256_set1_ps(smallest), _CMP_LT_OQ);
        const __m256 odd =
            _mm256_or_ps(_mm256_mul_ps(p[i], _mm256_castsi256_ps(power)), _mm256_castsi256_ps(_mm256_set1_epi32(1)));
        x[i] = _mm256_andnot_ps(tiny, odd);
    }
}

inline __m256 exp_of(__m256 x) {
    __m256 one[1] = {x};
    exp_of(one);
    return one[0];
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
    static constexpr int tile = 3;  // rows: their sums of products with `together` vectors fill 12 registers

    struct Halves {
        static constexpr int64_t bytes = 2;
        static __m256 load(const char* at) { return halves(at); }
    };
    struct Floats {
        static constexpr int64_t bytes = 4;
        static __m256 load(const char* at) { return _mm256_loadu_ps(reinterpret_cast<const float*>(at)); }
    };

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

    // Products of some rows with 16 keys.
    template <int rows, typename Type>
    static void multiply(const Block& keys, const Later* later, int64_t size, const float* q, float* to) {
        const char* at = keys.at;
        for (int c = 0; c < lanes; c += together, at += together * keys.stride) {
            __m256 low[rows], high[rows];
            multiply_half<rows, Type>({at, keys.stride}, later, c, size, q, low);
            multiply_half<rows, Type>({at + 8 * Type::bytes, keys.stride}, nullptr, c, size, q + 8, high);
            for (int r = 0; r < rows; ++r) _mm_storeu_ps(to + r * lanes + c, sum_each(low[r], high[r]));
        }
    }

    // Both quarters of 8 lanes of the products with `together` keys.
    template <int rows, typename Type>
    static MEDUSA_INLINE void multiply_half(const Block& keys, const Later* later, int cell, int64_t size,
                                            const float* q, __m256 (&to)[rows]) {
        const char *key0 = keys.at, *key1 = key0 + keys.stride, *key2 = key1 + keys.stride, *key3 = key2 + keys.stride;
        __m256 acc[rows][together];
        for (auto& row : acc) {
            for (__m256& one : row) one = _mm256_setzero_ps();
        }
        for (int64_t d = 0; d < size; d += lanes) {
            if (later && d < together * lanes) {  // for each, one cell with each of the first vectors
                later[0].fetch(cell + d / lanes), later[1].fetch(cell + d / lanes);
            }
            __m256 row[rows];
            for (int r = 0; r < rows; ++r) row[r] = _mm256_loadu_ps(q + r * size + d);
            const char* at[together] = {key0, key1, key2, key3};
#pragma GCC unroll 4
            for (int c = 0; c < together; ++c) {
                const __m256 key = Type::load(at[c] + Type::bytes * d);
#pragma GCC unroll 3
                for (int r = 0; r < rows; ++r) acc[r][c] = _mm256_fmadd_ps(row[r], key, acc[r][c]);
            }
        }
        for (int r = 0; r < rows; ++r) to[r] = quarters(acc[r]);
    }

    // Turns products of some rows with 16 keys into scores.
    static void finish(float* at, int64_t rows, const char* const* mask, int64_t cell, float scale, float cap,
                       float* largest) {
        const __m256 infinite = _mm256_set1_ps(-INFINITY), factor = _mm256_set1_ps(scale);
        for (int64_t i = 0; i < 2 * rows; ++i, at += 8, largest += 8) {
            const __m256 add = mask ? halves(mask[i / 2] + 2 * (cell + i % 2 * 8)) : _mm256_setzero_ps();
            const __m256 x = _mm256_loadu_ps(at);
            const __m256 score = cap != 0 ? _mm256_fmadd_ps(_mm256_set1_ps(cap), tanh_of(_mm256_mul_ps(x, factor)), add)
                                          : _mm256_fmadd_ps(x, factor, add);
            const __m256 seen = _mm256_blendv_ps(score, add, _mm256_cmp_ps(add, infinite, _CMP_EQ_OQ));
            _mm256_storeu_ps(at, seen);
            _mm256_storeu_ps(largest, _mm256_max_ps(seen, _mm256_loadu_ps(largest)));
        }
    }

    static void raise(uint16_t* most, const Block& values, int count, int64_t size) {
        const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
        for (int64_t d = 0; d < size; d += lanes) {
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

    // Turns scores of all rows into weights, block by block; adds their sums.
    static void weigh(float* scores, int64_t blocks, int64_t rows, const float* largest, double* sums) {
        for (int64_t i = 0, row = 0; i < blocks * rows; ++i, scores += lanes) {
            const __m256 top = _mm256_set1_ps(largest[row * lanes]);
            __m256 x[2] = {_mm256_sub_ps(_mm256_loadu_ps(scores), top),
                           _mm256_sub_ps(_mm256_loadu_ps(scores + 8), top)};
            exp_of(x);
            double* sum = sums + row * lanes / 2;
            for (int half = 0; half < 2; ++half) {
                _mm256_storeu_ps(scores + 8 * half, x[half]);
                const __m256d low = rounded(_mm256_castps256_ps128(x[half]));
                const __m256d high = rounded(_mm256_extractf128_ps(x[half], 1));
                _mm256_storeu_pd(sum + 4 * half,
                                 _mm256_add_pd(_mm256_loadu_pd(sum + 4 * half), _mm256_add_pd(low, high)));
            }
            row = row + 1 == rows ? 0 : row + 1;
        }
    }

    static double weight_of(float score) {
        return _mm256_cvtsd_f64(rounded(_mm256_castps256_ps128(exp_of(_mm256_set1_ps(score)))));
    }

    // sums += weights x values of 16 cells.
    template <int rows, typename Type>
    static void add(const Block& values, const Later& later, int64_t size, const float* weights, float* sums) {
        int64_t d = 0;
        for (; d + 8 * together <= size; d += 8 * together) {
            add<rows, together, Type>(values, later, d, size, weights, sums + d);
        }
        if (d < size) add<rows, 2, Type>(values, later, d, size, weights, sums + d);  // sizes are multiples of 16
    }

    template <int rows, int vectors, typename Type>
    static MEDUSA_INLINE void add(const Block& values, const Later& later, int64_t d, int64_t size,
                                  const float* weights, float* sums) {
        __m256 acc[rows][vectors];
#pragma GCC unroll 3
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
            for (int i = 0; i < vectors; ++i) acc[r][i] = _mm256_loadu_ps(sums + r * size + 8 * i);
        }
        const char* at = values.at + Type::bytes * d;
#pragma GCC unroll 1
        for (int c = 0; c < lanes; ++c, at += values.stride) {
            if (d == 0) later.fetch(c);
            __m256 weight[rows];  // with the sums of 3 rows and one vector they fill all 16 registers
            for (int r = 0; r < rows; ++r) weight[r] = _mm256_broadcast_ss(weights + r * lanes + c);
#pragma GCC unroll 4
            for (int i = 0; i < vectors; ++i) {
                const __m256 x = Type::load(at + Type::bytes * 8 * i);
#pragma GCC unroll 3
                for (int r = 0; r < rows; ++r) acc[r][i] = _mm256_fmadd_ps(weight[r], x, acc[r][i]);
            }
        }
#pragma GCC unroll 3
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
            for (int i = 0; i < vectors; ++i) _mm256_storeu_ps(sums + r * size + 8 * i, acc[r][i]);
        }
    }
};

}  // namespace

void attend_avx2(const Attention& a, const AttentionShare& share, int phase) {
    Part<Avx2>(a, share).run(phase);
}

}  // namespace medusa::kernels
