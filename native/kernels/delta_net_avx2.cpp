// The gated delta net with AVX2 and FMA; see delta_net.inl. Nothing here may run before select_kernels() has seen them.
#include "kernels/delta_net.inl"
#include "kernels/inline.h"

namespace medusa::kernels {
namespace {

struct Lanes {
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();

    static Lanes load(const float* at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
    static Lanes all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
    void store(float* at) const {
        _mm256_storeu_ps(at, low);
        _mm256_storeu_ps(at + 8, high);
    }
    void stream(float* at) const {
        _mm256_stream_ps(at, low);
        _mm256_stream_ps(at + 8, high);
    }
    static void streamed() { _mm_sfence(); }
    Lanes times(const Lanes& other) const { return {_mm256_mul_ps(low, other.low), _mm256_mul_ps(high, other.high)}; }
    Lanes scaled(float factor) const { return times(all(factor)); }
    Lanes fma(const Lanes& by, const Lanes& to) const {
        return {_mm256_fmadd_ps(low, by.low, to.low), _mm256_fmadd_ps(high, by.high, to.high)};
    }
    float sum() const {
        const __m256 eight = _mm256_add_ps(low, high);
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
};

}  // namespace

void delta_net_avx2(const DeltaNet& net, int64_t begin, int64_t end) {
    recur<Lanes>(net, begin, end);
}

}  // namespace medusa::kernels
