// Compiled like kernels/avx2.cpp. Narrow codes: eight products are added up in 16 bits, then widened.
#include "kernels/peak.inl"

namespace medusa::lab {
namespace {

constexpr int products = 8;
struct Bytes {
    using Register = __m256i;
    static Register filled(char byte) { return _mm256_set1_epi8(byte); }
    // Eight independent products. Weights are kept, as a compiler would move constant products out of the loop.
    static Register dot(Register sum, Register a, Register b) {
        Register narrow = _mm256_maddubs_epi16(sum, b);
        for (int i = 1; i < products; ++i) {
            Register weights = a;
            keep(weights);
            narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(weights, b));
        }
        return _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, a));
    }
};

struct Floats {
    using Register = __m256;
    static Register filled(char byte) { return _mm256_set1_ps(byte); }
    static Register dot(Register sum, Register a, Register b) { return _mm256_fmadd_ps(a, b, sum); }
};

}  // namespace

const Peak peak_avx2 = {chains * products * 32, run<Bytes>};
const Peak peak_floats_avx2 = {chains * 8, run<Floats>};

}  // namespace medusa::lab
