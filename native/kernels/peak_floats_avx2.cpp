// Compiled as kernels/attention_avx2.cpp.
#include <immintrin.h>

#include <cstring>
#include <utility>

#include "kernels/peak.h"

namespace medusa::lab {
namespace {

using Register = __m256;

inline Register filled(char byte) {
    return _mm256_set1_ps(byte);
}
inline Register dot(Register sum, Register a, Register b) {
    return _mm256_fmadd_ps(a, b, sum);
}

#include "kernels/peak.inl"

}  // namespace

const Peak peak_floats_avx2 = {"avx2", chains * 8, run};

}  // namespace medusa::lab
