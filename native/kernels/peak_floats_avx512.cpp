// Compiled as kernels/attention_avx512.cpp.
#include <immintrin.h>

#include <cstring>
#include <utility>

#include "kernels/peak.h"

namespace medusa::lab {
namespace {

using Register = __m512;

inline Register filled(char byte) {
    return _mm512_set1_ps(byte);
}
inline Register dot(Register sum, Register a, Register b) {
    return _mm512_fmadd_ps(a, b, sum);
}

#include "kernels/peak.inl"

}  // namespace

const Peak peak_floats_avx512 = {"avx512", chains * 16, run};

}  // namespace medusa::lab
