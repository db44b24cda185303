// Compiled as kernels/avx512vnni.cpp.
#include "kernels/peak.inl"

namespace medusa::lab {
namespace {

struct Isa {
    using Register = __m512i;
    static Register filled(char byte) { return _mm512_set1_epi8(byte); }
    static Register dot(Register sum, Register a, Register b) { return _mm512_dpbusd_epi32(sum, a, b); }
};

}  // namespace

const Peak peak_avx512vnni = {"avx512vnni", chains * 64, run<Isa>};

}  // namespace medusa::lab
