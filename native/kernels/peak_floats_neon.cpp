// Compiled as kernels/attention_neon.cpp.
#include "kernels/peak.inl"

namespace medusa::lab {
namespace {

struct Isa {
    using Register = float32x4_t;
    static Register filled(char byte) { return vdupq_n_f32(byte); }
    static Register dot(Register sum, Register a, Register b) { return vfmaq_f32(sum, a, b); }
};

}  // namespace

const Peak peak_floats_neon = {"neon", chains * 4, run<Isa>};

}  // namespace medusa::lab
