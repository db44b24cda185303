// Compiled like kernels/neon_dotprod.cpp.
#include "kernels/peak.inl"

namespace medusa::lab {
namespace {

struct Bytes {
    using Register = int8x16_t;
    static Register filled(char byte) { return vdupq_n_s8(static_cast<int8_t>(byte)); }
    static Register dot(Register sum, Register a, Register b) {
        return vreinterpretq_s8_s32(vdotq_s32(vreinterpretq_s32_s8(sum), a, b));
    }
};

struct Floats {
    using Register = float32x4_t;
    static Register filled(char byte) { return vdupq_n_f32(byte); }
    static Register dot(Register sum, Register a, Register b) { return vfmaq_f32(sum, a, b); }
};

}  // namespace

const Peak peak_neon_dotprod = {chains * 16, run<Bytes>};
const Peak peak_floats_neon = {chains * 4, run<Floats>};

}  // namespace medusa::lab
