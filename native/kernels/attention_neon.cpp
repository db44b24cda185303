// Attention with NEON; see attention.cpp for what is computed. Any 64-bit ARM processor runs it.
#include <arm_neon.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention_layout.h"
#include "kernels/format.h"

namespace medusa::kernels {
namespace {

#include "kernels/attention.inl"

constexpr int together = 4;  // cells whose products with a row are summed together
constexpr int parts = 4;     // registers that 16 lanes fill

inline float32x4_t halves(const char* at) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(reinterpret_cast<const uint8_t*>(at))));
}

// One quarter of four sums of 16 lanes: element i is that of a[i].
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

    // Products of one row with `together` of the keys.
    static float32x4_t products_of(const float* x, const float* keys, int64_t size) {
        float32x4_t acc[together][parts];
        for (auto& one : acc) {
            for (float32x4_t& part : one) part = vdupq_n_f32(0);
        }
        for (int64_t d = 0; d < size; d += lanes) {
            float32x4_t row[parts];
            for (int i = 0; i < parts; ++i) row[i] = vld1q_f32(x + d + 4 * i);
#pragma GCC unroll 4
            for (int c = 0; c < together; ++c) {
#pragma GCC unroll 4
                for (int i = 0; i < parts; ++i) {
                    acc[c][i] = vfmaq_f32(acc[c][i], row[i], vld1q_f32(keys + c * size + d + 4 * i));
                }
            }
        }
        float32x4_t quarter[parts];
        for (int i = 0; i < parts; ++i) quarter[i] = quarters(acc[0][i], acc[1][i], acc[2][i], acc[3][i]);
        return vaddq_f32(vaddq_f32(quarter[0], quarter[1]), vaddq_f32(quarter[2], quarter[3]));
    }

    // Products of some rows with 16 keys.
    static void multiply(const float* keys, int64_t size, const float* const* q, int64_t rows, float* to) {
        for (int64_t r = 0; r < rows; ++r) {
            for (int c = 0; c < lanes; c += together) {
                vst1q_f32(to + r * lanes + c, products_of(q[r], keys + c * size, size));
            }
        }
    }

    // Products with 16 keys become scores.
    static void finish(float* at, const char* mask, float scale, float cap) {
        for (int c = 0; c < lanes; c += 4) {
            const float32x4_t add = mask ? halves(mask + 2 * c) : vdupq_n_f32(0), x = vld1q_f32(at + c);
            const float32x4_t score = cap != 0 ? vfmaq_f32(add, vdupq_n_f32(cap), tanh_of(vmulq_n_f32(x, scale)))
                                               : vfmaq_f32(add, x, vdupq_n_f32(scale));
            vst1q_f32(at + c, vbslq_f32(vceqq_f32(add, vdupq_n_f32(-INFINITY)), add, score));
        }
    }

    static void raise(uint16_t* most, const char* values, size_t stride, int count, int64_t size) {
        for (int64_t d = 0; d < size; d += 8) {
            uint16x8_t all = vld1q_u16(most + d);
            for (int c = 0; c < count; ++c) {
                const auto* from = reinterpret_cast<const uint8_t*>(values + static_cast<size_t>(c) * stride + 2 * d);
                all = vmaxq_u16(all, vandq_u16(vreinterpretq_u16_u8(vld1q_u8(from)), vdupq_n_u16(0x7FFF)));
            }
            vst1q_u16(most + d, all);
        }
    }

    static float largest(const float* scores, int64_t blocks, int64_t stride) {
        float32x4_t top = vdupq_n_f32(-INFINITY);
        for (int64_t i = 0; i < 4 * blocks; ++i) {
            top = vmaxnmq_f32(top, vld1q_f32(scores + i / 4 * stride + i % 4 * 4));
        }
        return vmaxnmvq_f32(top);
    }

    // Scores become weights; their sum.
    static double weigh(float* scores, int64_t blocks, int64_t stride, float largest) {
        if (largest == -INFINITY) {
            for (int64_t i = 0; i < blocks; ++i) std::memset(scores + i * stride, 0, lanes * sizeof(float));
            return 0;
        }
        float64x2_t low = vdupq_n_f64(0), high = vdupq_n_f64(0);
        for (int64_t i = 0; i < 4 * blocks; ++i) {
            float* at = scores + i / 4 * stride + i % 4 * 4;
            const float32x4_t p = exp_of(vsubq_f32(vld1q_f32(at), vdupq_n_f32(largest)));
            vst1q_f32(at, p);
            low = vaddq_f64(low, rounded(vcvt_f64_f32(vget_low_f32(p))));
            high = vaddq_f64(high, rounded(vcvt_high_f64_f32(p)));
        }
        return vaddvq_f64(vaddq_f64(low, high));
    }

    static double weight_of(float score) {
        return vgetq_lane_f64(rounded(vcvt_f64_f32(vget_low_f32(exp_of(vdupq_n_f32(score))))), 0);
    }

    // sums += weights x values of 16 cells.
    template <int rows>
    static void add(float* sums, const float* weights, const float* x, int64_t size) {
        for (int64_t d = 0; d < size; d += 8) {
            float32x4_t low[rows], high[rows];
            for (int r = 0; r < rows; ++r) {
                low[r] = vld1q_f32(sums + r * size + d);
                high[r] = vld1q_f32(sums + r * size + d + 4);
            }
            for (int c = 0; c < lanes; ++c) {
                const float32x4_t x0 = vld1q_f32(x + c * size + d), x1 = vld1q_f32(x + c * size + d + 4);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) {
                    const float32x4_t weight = vld1q_dup_f32(weights + r * lanes + c);
                    low[r] = vfmaq_f32(low[r], weight, x0);
                    high[r] = vfmaq_f32(high[r], weight, x1);
                }
            }
            for (int r = 0; r < rows; ++r) {
                vst1q_f32(sums + r * size + d, low[r]);
                vst1q_f32(sums + r * size + d + 4, high[r]);
            }
        }
    }
};

}  // namespace

void attend_neon(const Attention& a, const AttentionShare& share, int phase) {
    Part<Neon>(a, share).run(phase);
}

}  // namespace medusa::kernels
