// Compiled like kernels/avx512vnni.cpp.
#include "kernels/peak.inl"

namespace medusa::lab {
namespace {

struct Bytes {
    using Register = __m512i;
    static Register filled(char byte) { return _mm512_set1_epi8(byte); }
    static Register dot(Register sum, Register a, Register b) { return _mm512_dpbusd_epi32(sum, a, b); }
};

struct Floats {
    using Register = __m512;
    static Register filled(char byte) { return _mm512_set1_ps(byte); }
    static Register dot(Register sum, Register a, Register b) { return _mm512_fmadd_ps(a, b, sum); }
};

}  // namespace

const Peak peak_avx512vnni = {chains * 64, run<Bytes>};
const Peak peak_floats_avx512 = {chains * 16, run<Floats>};

}  // namespace medusa::lab
