// Compiled as kernels/attention_neon.cpp.
#include <arm_neon.h>

#include <cstring>
#include <utility>

#include "kernels/peak.h"

namespace medusa::lab {
namespace {

using Register = float32x4_t;

inline Register filled(char byte) {
    return vdupq_n_f32(byte);
}
inline Register dot(Register sum, Register a, Register b) {
    return vfmaq_f32(sum, a, b);
}

#include "kernels/peak.inl"

}  // namespace

const Peak peak_floats_neon = {"neon", chains * 4, run};

}  // namespace medusa::lab
