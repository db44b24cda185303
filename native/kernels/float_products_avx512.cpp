// Products with matrices of floats, with AVX-512. Compiled with AVX512 F, BW, DQ and VL; nothing here may run before
// select_kernels() has seen them.
#include "kernels/float_products.inl"

namespace medusa::kernels {
namespace {

struct Avx512 {
    using Vector = __m512;
    static constexpr int lanes = 16, widest = 9;
    static constexpr int vectors(int) { return 1; }

    static Vector zero() { return _mm512_setzero_ps(); }
    template <Codes codes>
    static Vector load(const uint8_t* at) {
        if constexpr (codes == Codes::f32) return _mm512_loadu_ps(at);
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        if constexpr (codes == Codes::f16) return _mm512_cvtph_ps(bits);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
    static Vector add_product(Vector w, const float* x, Vector sum) {
        return _mm512_fmadd_ps(w, _mm512_set1_ps(*x), sum);
    }
    static Vector sum(Vector a, Vector b) { return _mm512_add_ps(a, b); }
    static void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
};

}  // namespace

void multiply_floats_avx512(const Job& job) {
    multiply_by<Avx512>(job);
    _mm256_zeroupper();  // otherwise plain SSE code crawls from here on
}

}  // namespace medusa::kernels
