// The gated delta net with NEON; see delta_net.inl.
#include "kernels/delta_net.inl"
#include "kernels/inline.h"

namespace medusa::kernels {
namespace {

struct Lanes {
    float32x4_t x[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};

    static Lanes load(const float* at) {
        return {{vld1q_f32(at), vld1q_f32(at + 4), vld1q_f32(at + 8), vld1q_f32(at + 12)}};
    }
    static Lanes all(float value) {
        const float32x4_t four = vdupq_n_f32(value);
        return {{four, four, four, four}};
    }
    void store(float* at) const {
        for (int i = 0; i < 4; ++i) vst1q_f32(at + 4 * i, x[i]);
    }
    void stream(float* at) const { store(at); }
    static void streamed() {}
    Lanes times(const Lanes& other) const {
        Lanes out;
        for (int i = 0; i < 4; ++i) out.x[i] = vmulq_f32(x[i], other.x[i]);
        return out;
    }
    Lanes scaled(float factor) const { return times(all(factor)); }
    Lanes fma(const Lanes& by, const Lanes& to) const {
        Lanes out;
        for (int i = 0; i < 4; ++i) out.x[i] = vfmaq_f32(to.x[i], x[i], by.x[i]);
        return out;
    }
    float sum() const {
        const float32x4_t four = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
        const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }
};

}  // namespace

void delta_net_neon(const DeltaNet& net, int64_t begin, int64_t end) {
    recur<Lanes>(net, begin, end);
}

}  // namespace medusa::kernels
