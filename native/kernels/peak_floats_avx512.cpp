// Compiled as kernels/attention_avx512.cpp.
#include "kernels/peak.inl"

namespace medusa::lab {
namespace {

struct Isa {
    using Register = __m512;
    static Register filled(char byte) { return _mm512_set1_ps(byte); }
    static Register dot(Register sum, Register a, Register b) { return _mm512_fmadd_ps(a, b, sum); }
};

}  // namespace

const Peak peak_floats_avx512 = {"avx512", chains * 16, run<Isa>};

}  // namespace medusa::lab
