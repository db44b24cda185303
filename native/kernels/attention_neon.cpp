// Attention with NEON; see attention.cpp for what is computed. Any 64-bit ARM processor runs it.
#include <arm_neon.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention.h"
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

struct Rows : Tile {
    using Tile::Tile;

    Sight sees(int64_t cell) const {
        if (!a.mask) return Sight::all;
        const uint16x8_t infinite = vdupq_n_u16(0xFC00);
        uint16x8_t none = vdupq_n_u16(0xFFFF), some = vdupq_n_u16(0);  // hidden from all rows, from some
        for (int r = 0; r < n; ++r) {
            const auto* at = reinterpret_cast<const uint8_t*>(mask[r] + 2 * cell);
            const uint16x8_t low = vceqq_u16(vreinterpretq_u16_u8(vld1q_u8(at)), infinite);
            const uint16x8_t high = vceqq_u16(vreinterpretq_u16_u8(vld1q_u8(at + 16)), infinite);
            none = vandq_u16(none, vandq_u16(low, high));
            some = vorrq_u16(some, vorrq_u16(low, high));
        }
        return vmaxvq_u16(some) == 0 ? Sight::all : vminvq_u16(none) != 0 ? Sight::none : Sight::some;
    }

    // Products of one row with `together` of the keys.
    float32x4_t products_of(const float* x, const float* key) const {
        float32x4_t acc[together][parts];
        for (auto& one : acc) {
            for (float32x4_t& part : one) part = vdupq_n_f32(0);
        }
        for (int64_t d = 0; d < a.key_size; d += lanes) {
            float32x4_t row[parts];
            for (int i = 0; i < parts; ++i) row[i] = vld1q_f32(x + d + 4 * i);
#pragma GCC unroll 4
            for (int c = 0; c < together; ++c) {
#pragma GCC unroll 4
                for (int i = 0; i < parts; ++i) {
                    acc[c][i] = vfmaq_f32(acc[c][i], row[i], vld1q_f32(key + c * a.key_size + d + 4 * i));
                }
            }
        }
        float32x4_t quarter[parts];
        for (int i = 0; i < parts; ++i) quarter[i] = quarters(acc[0][i], acc[1][i], acc[2][i], acc[3][i]);
        return vaddq_f32(vaddq_f32(quarter[0], quarter[1]), vaddq_f32(quarter[2], quarter[3]));
    }

    void score(int64_t cell) {
        const float32x4_t infinite = vdupq_n_f32(-INFINITY), scale = vdupq_n_f32(a.scale);
        for (int c = 0; c < lanes; ++c) {
            const char* key = k + (cell + c) * a.k_cell;
            for (int64_t d = 0; d < a.key_size; d += 4) vst1q_f32(keys + c * a.key_size + d, halves(key + 2 * d));
        }
        for (int r = 0; r < n; ++r) {
            for (int c = 0; c < lanes; c += together) {
                const float32x4_t add = mask[r] ? halves(mask[r] + 2 * (cell + c)) : vdupq_n_f32(0);
                const float32x4_t s = vfmaq_f32(add, products_of(q[r], keys + c * a.key_size), scale);
                vst1q_f32(scores + r * stride + cell + c, vbslq_f32(vceqq_f32(add, infinite), add, s));
            }
        }
    }

    // Raises largest magnitudes to those of the values of some cells.
    void raise(uint16_t* largest, const char* values, int count) const {
        for (int64_t d = 0; d < a.value_size; d += 8) {
            uint16x8_t all = vld1q_u16(largest + d);
            for (int c = 0; c < count; ++c) {
                const auto* from = reinterpret_cast<const uint8_t*>(values + c * a.v_cell + 2 * d);
                all = vmaxq_u16(all, vandq_u16(vreinterpretq_u16_u8(vld1q_u8(from)), vdupq_n_u16(0x7FFF)));
            }
            vst1q_u16(largest + d, all);
        }
    }

    // Scores of one row become weights; their sum.
    double normalise(float* row) const {
        float32x4_t top = vdupq_n_f32(-INFINITY);
        for (int64_t cell = 0; cell < a.cells; cell += 4) {
            if (seen[cell / lanes] != Sight::none) top = vmaxnmq_f32(top, vld1q_f32(row + cell));
        }
        const float largest = vmaxnmvq_f32(top);
        if (largest == -INFINITY) {
            std::memset(row, 0, static_cast<size_t>(a.cells) * sizeof(float));
            return 0;
        }
        float64x2_t sum[4];  // of cells 0 and 1, 2 and 3, ... of every 8
        for (float64x2_t& one : sum) one = vdupq_n_f64(0);
        for (int64_t cell = 0; cell < a.cells; cell += 8) {
            if (seen[cell / lanes] == Sight::none) continue;
            for (int i = 0; i < 2; ++i) {
                float* at = row + cell + 4 * i;
                const float32x4_t p = exp_of(vsubq_f32(vld1q_f32(at), vdupq_n_f32(largest)));
                vst1q_f32(at, p);
                sum[2 * i] = vaddq_f64(sum[2 * i], vcvt_f64_f32(vget_low_f32(p)));
                sum[2 * i + 1] = vaddq_f64(sum[2 * i + 1], vcvt_high_f64_f32(p));
            }
        }
        double all = 0;
        for (const float64x2_t one : sum) {
            all += vgetq_lane_f64(one, 0);
            all += vgetq_lane_f64(one, 1);
        }
        return all;
    }

    // sums += weights x values of 16 cells.
    template <int rows>
    void add_values(int64_t cell) {
        for (int64_t d = 0; d < a.value_size; d += 8) {
            float32x4_t low[rows], high[rows];
            for (int r = 0; r < rows; ++r) {
                low[r] = vld1q_f32(sums + r * a.value_size + d);
                high[r] = vld1q_f32(sums + r * a.value_size + d + 4);
            }
            for (int c = 0; c < lanes; ++c) {
                const char* value = v + (cell + c) * a.v_cell + 2 * d;
                const float32x4_t x0 = halves(value), x1 = halves(value + 8);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) {
                    const float32x4_t weight = vld1q_dup_f32(scores + r * stride + cell + c);
                    low[r] = vfmaq_f32(low[r], weight, x0);
                    high[r] = vfmaq_f32(high[r], weight, x1);
                }
            }
            for (int r = 0; r < rows; ++r) {
                vst1q_f32(sums + r * a.value_size + d, low[r]);
                vst1q_f32(sums + r * a.value_size + d + 4, high[r]);
            }
        }
    }
};

}  // namespace

void attend_neon(const Attention& a, int64_t begin, int64_t end, void* scratch) {
    attend_rows<Rows>(a, begin, end, scratch);
}

}  // namespace medusa::kernels
