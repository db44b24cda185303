// Compiled as kernels/avx512vnni.cpp.
#include <immintrin.h>

#include <cstring>
#include <utility>

#include "kernels/peak.h"

namespace medusa::lab {
namespace {

using Register = __m512i;

inline Register filled(char byte) {
    return _mm512_set1_epi8(byte);
}
inline Register dot(Register sum, Register a, Register b) {
    return _mm512_dpbusd_epi32(sum, a, b);
}

#include "kernels/peak.inl"

}  // namespace

const Peak peak_avx512vnni = {"avx512vnni", chains * 64, run};

}  // namespace medusa::lab
