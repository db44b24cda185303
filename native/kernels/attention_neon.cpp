// Attention with NEON; see attention.cpp for what is computed. Any 64-bit ARM processor runs it.
#include "kernels/attention.inl"

namespace medusa::kernels {
namespace {

constexpr int together = 4;  // keys, or vectors of a value, multiplied with some rows at a time
constexpr int parts = 4;     // registers filled by 16 lanes

inline float32x4_t halves(const char* at) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(reinterpret_cast<const uint8_t*>(at))));
}

// One quarter of four sums of 16 lanes: element i is a quarter of a[i].
inline float32x4_t quarters(float32x4_t a0, float32x4_t a1, float32x4_t a2, float32x4_t a3) {
    const float64x2_t p = vreinterpretq_f64_f32(vaddq_f32(vzip1q_f32(a0, a1), vzip2q_f32(a0, a1)));
    const float64x2_t q = vreinterpretq_f64_f32(vaddq_f32(vzip1q_f32(a2, a3), vzip2q_f32(a2, a3)));
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(p, q)), vreinterpretq_f32_f64(vzip2q_f64(p, q)));
}

inline float32x4_t exp_of(float32x4_t x) {
    using namespace exponential;
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, log2e));
    const float32x4_t r = vfmsq_f32(vfmsq_f32(x, n, vdupq_n_f32(ln2_high)), n, vdupq_n_f32(ln2_low));
    float32x4_t p = vdupq_n_f32(taylor[0]);
    for (int i = 1; i < 7; ++i) p = vfmaq_f32(vdupq_n_f32(taylor[i]), p, r);
    // Neither 2^n nor the product is denormal: x is above `smallest`.
    const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    const uint32x4_t tiny = vcltq_f32(x, vdupq_n_f32(smallest));
    const uint32x4_t product = vreinterpretq_u32_f32(vmulq_f32(p, vreinterpretq_f32_s32(power)));
    return vreinterpretq_f32_u32(vbicq_u32(vorrq_u32(product, vdupq_n_u32(1)), tiny));
}

inline float32x4_t tanh_of(float32x4_t x) {
    const float32x4_t one = vdupq_n_f32(1), e = exp_of(vmulq_n_f32(vabsq_f32(x), -2));
    const float32x4_t size = vdivq_f32(vsubq_f32(one, e), vaddq_f32(one, e));
    return vbslq_f32(vdupq_n_u32(0x80000000u), x, size);
}

inline float64x2_t rounded(float64x2_t weights) {
    const float64x2_t grid = vdupq_n_f64(weight_grid);
    return vsubq_f64(vaddq_f64(weights, grid), grid);
}

// 16 signed bytes times a scale.
inline void store_scaled(float* to, int8x16_t bytes, float scale) {
    const int16x8_t half[2] = {vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)};
    for (int i = 0; i < 2; ++i) {
        vst1q_f32(to + 8 * i, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(half[i]))), scale));
        vst1q_f32(to + 8 * i + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(half[i])), scale));
    }
}

struct Neon {
    static constexpr int tile = 4;  // rows: their sums of products with `together` vectors fill 16 registers

    struct Halves {
        static constexpr int64_t bytes = 2;
        static float32x4_t load(const char* at) { return halves(at); }
    };
    struct Floats {
        static constexpr int64_t bytes = 4;
        static float32x4_t load(const char* at) { return vld1q_f32(reinterpret_cast<const float*>(at)); }
    };

    // Which of 16 cells the mask leaves visible, as bits.
    static unsigned visible(const char* mask) {
        static constexpr uint16_t bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
        const uint16x8_t infinite = vdupq_n_u16(0xFC00), bit = vld1q_u16(bits);
        const auto* at = reinterpret_cast<const uint8_t*>(mask);
        const uint16x8_t low = vbicq_u16(bit, vceqq_u16(vreinterpretq_u16_u8(vld1q_u8(at)), infinite));
        const uint16x8_t high = vbicq_u16(bit, vceqq_u16(vreinterpretq_u16_u8(vld1q_u8(at + 16)), infinite));
        return vaddvq_u16(low) | static_cast<unsigned>(vaddvq_u16(high)) << 8;
    }

    static void unpack(CellType type, const char* from, float* to, int64_t size) {
        if (type == CellType::f16) {
            for (int64_t d = 0; d < size; d += 4) vst1q_f32(to + d, halves(from + 2 * d));
            return;
        }
        for (int64_t d = 0; d < size; d += quantized_block) {
            uint16_t bits;
            std::memcpy(&bits, from, sizeof(bits));
            const float scale = vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))), 0);
            const uint8x16_t first = vld1q_u8(reinterpret_cast<const uint8_t*>(from + 2));
            if (type == CellType::q8_0) {
                store_scaled(to + d, vreinterpretq_s8_u8(first), scale);
                store_scaled(to + d + 16, vld1q_s8(reinterpret_cast<const int8_t*>(from + 18)), scale);
                from += 34;
                continue;
            }
            const int8x16_t eight = vdupq_n_s8(8);
            const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(first, vdupq_n_u8(15)));
            store_scaled(to + d, vsubq_s8(low, eight), scale);
            store_scaled(to + d + 16, vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(first, 4)), eight), scale);
            from += 18;
        }
    }

    // Products of some rows with 16 keys.
    template <int rows, typename Type>
    static void multiply(const Block& keys, const Later* later, int64_t size, const float* q, float* to) {
        const char* at = keys.at;
        for (int c = 0; c < lanes; c += together, at += static_cast<size_t>(together) * keys.stride) {
            for (int i = 0; i < together; ++i) later[0].fetch(c + i), later[1].fetch(c + i);
            float32x4_t quarter[parts][rows];
            for (int i = 0; i < parts; ++i) {
                multiply_quarter<rows, Type>({at + 4 * i * Type::bytes, keys.stride}, size, q + 4 * i, quarter[i]);
            }
            for (int r = 0; r < rows; ++r) {
                const float32x4_t low = vaddq_f32(quarter[0][r], quarter[1][r]);
                vst1q_f32(to + r * lanes + c, vaddq_f32(low, vaddq_f32(quarter[2][r], quarter[3][r])));
            }
        }
    }

    // A quarter of the lanes of the products with `together` keys.
    template <int rows, typename Type>
    static MEDUSA_INLINE void multiply_quarter(const Block& keys, int64_t size, const float* q,
                                               float32x4_t (&to)[rows]) {
        const char* key[together] = {keys.at, keys.at + keys.stride, keys.at + 2 * keys.stride,
                                     keys.at + 3 * keys.stride};
        float32x4_t acc[rows][together];
        for (auto& row : acc) {
            for (float32x4_t& one : row) one = vdupq_n_f32(0);
        }
        for (int64_t d = 0; d < size; d += lanes) {
            float32x4_t x[together];
            for (int c = 0; c < together; ++c) x[c] = Type::load(key[c] + Type::bytes * d);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
                const float32x4_t row = vld1q_f32(q + r * size + d);
                for (int c = 0; c < together; ++c) acc[r][c] = vfmaq_f32(acc[r][c], row, x[c]);
            }
        }
        for (int r = 0; r < rows; ++r) to[r] = quarters(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    }

    // Turns products of some rows with 16 keys into scores.
    static void finish(float* at, int64_t rows, const char* const* mask, int64_t cell, float scale, float cap,
                       float* largest) {
        for (int64_t i = 0; i < parts * rows; ++i, at += 4, largest += 4) {
            const float32x4_t add = mask ? halves(mask[i / parts] + 2 * (cell + i % parts * 4)) : vdupq_n_f32(0);
            const float32x4_t x = vld1q_f32(at);
            const float32x4_t score = cap != 0 ? vfmaq_f32(add, vdupq_n_f32(cap), tanh_of(vmulq_n_f32(x, scale)))
                                               : vfmaq_f32(add, x, vdupq_n_f32(scale));
            const float32x4_t seen = vbslq_f32(vceqq_f32(add, vdupq_n_f32(-INFINITY)), add, score);
            vst1q_f32(at, seen);
            vst1q_f32(largest, vmaxnmq_f32(seen, vld1q_f32(largest)));
        }
    }

    static void raise(uint16_t* most, const Block& values, int count, int64_t size) {
        for (int64_t d = 0; d < size; d += 8) {
            uint16x8_t all = vld1q_u16(most + d);
            for (int c = 0; c < count; ++c) {
                const char* at = values.at + static_cast<size_t>(c) * values.stride + 2 * d;
                const uint16x8_t x = vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(at)));
                all = vmaxq_u16(all, vandq_u16(x, vdupq_n_u16(0x7FFF)));
            }
            vst1q_u16(most + d, all);
        }
    }

    // Turns scores of all rows into weights, block by block; adds their sums.
    static void weigh(float* scores, int64_t blocks, int64_t rows, const float* largest, double* sums) {
        for (int64_t i = 0, row = 0; i < blocks * rows; ++i) {
            double* sum = sums + row * lanes / 2;
            for (int part = 0; part < parts; ++part, scores += 4) {
                const float32x4_t p = exp_of(vsubq_f32(vld1q_f32(scores), vdupq_n_f32(largest[row * lanes])));
                vst1q_f32(scores, p);
                const float64x2_t low = rounded(vcvt_f64_f32(vget_low_f32(p))), high = rounded(vcvt_high_f64_f32(p));
                vst1q_f64(sum + 2 * part, vaddq_f64(vld1q_f64(sum + 2 * part), vaddq_f64(low, high)));
            }
            row = row + 1 == rows ? 0 : row + 1;
        }
    }

    static double weight_of(float score) {
        return vgetq_lane_f64(rounded(vcvt_f64_f32(vget_low_f32(exp_of(vdupq_n_f32(score))))), 0);
    }

    // sums += weights x values of 16 cells.
    template <int rows, typename Type>
    static void add(const Block& values, const Later& later, int64_t size, const float* weights, float* sums) {
        for (int64_t d = 0; d < size; d += 4 * together) {  // sizes are multiples of 16
            float32x4_t acc[rows][together];
            for (int r = 0; r < rows; ++r) {
                for (int i = 0; i < together; ++i) acc[r][i] = vld1q_f32(sums + r * size + d + 4 * i);
            }
            const char* at = values.at + Type::bytes * d;
#pragma GCC unroll 1
            for (int c = 0; c < lanes; ++c, at += values.stride) {
                if (d == 0) later.fetch(c);
                float32x4_t x[together];
                for (int i = 0; i < together; ++i) x[i] = Type::load(at + Type::bytes * 4 * i);
#pragma GCC unroll 4
                for (int r = 0; r < rows; ++r) {
                    const float32x4_t weight = vld1q_dup_f32(weights + r * lanes + c);
                    for (int i = 0; i < together; ++i) acc[r][i] = vfmaq_f32(acc[r][i], weight, x[i]);
                }
            }
            for (int r = 0; r < rows; ++r) {
                for (int i = 0; i < together; ++i) vst1q_f32(sums + r * size + d + 4 * i, acc[r][i]);
            }
        }
    }
};

}  // namespace

void attend_neon(const Attention& a, const AttentionShare& share, int phase) {
    Part<Neon>(a, share).run(phase);
}

}  // namespace medusa::kernels
