// The gated delta net with AVX-512; see delta_net.inl. Nothing here may run before select_kernels() has seen it.
#include "kernels/delta_net.inl"
#include "kernels/inline.h"

namespace medusa::kernels {
namespace {

struct Lanes {
    __m512 x = _mm512_setzero_ps();

    static Lanes load(const float* at) { return {_mm512_loadu_ps(at)}; }
    static Lanes all(float value) { return {_mm512_set1_ps(value)}; }
    void store(float* at) const { _mm512_storeu_ps(at, x); }
    void stream(float* at) const { _mm512_stream_ps(at, x); }
    static void streamed() { _mm_sfence(); }
    Lanes times(const Lanes& other) const { return {_mm512_mul_ps(x, other.x)}; }
    Lanes scaled(float factor) const { return {_mm512_mul_ps(x, _mm512_set1_ps(factor))}; }
    Lanes fma(const Lanes& by, const Lanes& to) const { return {_mm512_fmadd_ps(x, by.x, to.x)}; }
    float sum() const {
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
};

}  // namespace

void delta_net_avx512(const DeltaNet& net, int64_t begin, int64_t end) {
    recur<Lanes>(net, begin, end);
}

}  // namespace medusa::kernels
