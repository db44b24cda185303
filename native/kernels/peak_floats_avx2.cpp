// Compiled as kernels/attention_avx2.cpp.
#include "kernels/peak.inl"

namespace medusa::lab {
namespace {

struct Isa {
    using Register = __m256;
    static Register filled(char byte) { return _mm256_set1_ps(byte); }
    static Register dot(Register sum, Register a, Register b) { return _mm256_fmadd_ps(a, b, sum); }
};

}  // namespace

const Peak peak_floats_avx2 = {"avx2", chains * 8, run<Isa>};

}  // namespace medusa::lab
