// Compiled like kernels/avxvnni.cpp.
#include "kernels/peak.inl"

namespace medusa::lab {
namespace {

struct Isa {
    using Register = __m256i;
    static Register filled(char byte) { return _mm256_set1_epi8(byte); }
    static Register dot(Register sum, Register a, Register b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
};

}  // namespace

const Peak peak_avxvnni = {chains * 32, run<Isa>};

}  // namespace medusa::lab
