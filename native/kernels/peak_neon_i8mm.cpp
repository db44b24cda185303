// Compiled as kernels/neon_i8mm.cpp.
#include <arm_neon.h>

#include <cstring>
#include <utility>

#include "kernels/peak.h"

namespace medusa::lab {
namespace {

using Register = int8x16_t;

inline Register filled(char byte) {
    return vdupq_n_s8(static_cast<int8_t>(byte));
}
inline Register dot(Register sum, Register a, Register b) {
    return vreinterpretq_s8_s32(vmmlaq_s32(vreinterpretq_s32_s8(sum), a, b));
}

#include "kernels/peak.inl"

}  // namespace

const Peak peak_neon_i8mm = {"neon-i8mm", chains * 32, run};

}  // namespace medusa::lab
