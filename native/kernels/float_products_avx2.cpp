// Products with matrices of floats, with AVX2, FMA and F16C; nothing here may run before select_kernels() has seen
// them.
#include "kernels/float_products.inl"

namespace medusa::kernels {
namespace {

struct Avx2 {
    using Vector = __m256;
    static constexpr int lanes = 8, widest = 6;
    // Sums, weights and an activation fill 16 registers.
    static constexpr int vectors(int n) { return n <= 2 ? 2 : 1; }

    static Vector zero() { return _mm256_setzero_ps(); }
    template <Codes codes>
    static Vector load(const uint8_t* at) {
        if constexpr (codes == Codes::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(at));
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        if constexpr (codes == Codes::f16) return _mm256_cvtph_ps(bits);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    static Vector add_product(Vector w, const float* x, Vector sum) {
        return _mm256_fmadd_ps(w, _mm256_broadcast_ss(x), sum);
    }
    static Vector sum(Vector a, Vector b) { return _mm256_add_ps(a, b); }
    static void store(float* to, Vector x) { _mm256_storeu_ps(to, x); }
};

}  // namespace

void multiply_floats_avx2(const Job& job) {
    multiply_by<Avx2>(job);
    _mm256_zeroupper();  // otherwise plain SSE code crawls from here on
}

}  // namespace medusa::kernels
