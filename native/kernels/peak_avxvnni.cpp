// Compiled as kernels/avxvnni.cpp.
#include <immintrin.h>

#include <cstring>
#include <utility>

#include "kernels/peak.h"

namespace medusa::lab {
namespace {

using Register = __m256i;

inline Register filled(char byte) {
    return _mm256_set1_epi8(byte);
}
inline Register dot(Register sum, Register a, Register b) {
    return _mm256_dpbusd_avx_epi32(sum, a, b);
}

#include "kernels/peak.inl"

}  // namespace

const Peak peak_avxvnni = {"avxvnni", chains * 32, run};

}  // namespace medusa::lab
