// Compiled like kernels/neon_i8mm.cpp.
#include "kernels/peak.inl"

namespace medusa::lab {
namespace {

struct Isa {
    using Register = int8x16_t;
    static Register filled(char byte) { return vdupq_n_s8(static_cast<int8_t>(byte)); }
    static Register dot(Register sum, Register a, Register b) {
        return vreinterpretq_s8_s32(vmmlaq_s32(vreinterpretq_s32_s8(sum), a, b));
    }
};

}  // namespace

const Peak peak_neon_i8mm = {chains * 32, run<Isa>};

}  // namespace medusa::lab
