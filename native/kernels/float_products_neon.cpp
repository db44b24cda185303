// Products with matrices of floats, with NEON. Any 64-bit ARM processor runs it.
#include "kernels/float_products.inl"

namespace medusa::kernels {
namespace {

struct Neon {
    using Vector = float32x4_t;
    static constexpr int lanes = 4, widest = 8;
    // Sums fill half of 32 registers.
    static constexpr int vectors(int n) { return n <= 2 ? 4 : n <= 4 ? 2 : 1; }

    static Vector zero() { return vdupq_n_f32(0); }
    template <Codes codes>
    static Vector load(const uint8_t* at) {
        if constexpr (codes == Codes::f32) return vreinterpretq_f32_u8(vld1q_u8(at));
        const uint8x8_t bits = vld1_u8(at);
        if constexpr (codes == Codes::f16) return vcvt_f32_f16(vreinterpret_f16_u8(bits));
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(bits), 16));
    }
    static Vector add_product(Vector w, const float* x, Vector sum) { return vfmaq_n_f32(sum, w, *x); }
    static Vector sum(Vector a, Vector b) { return vaddq_f32(a, b); }
    static void store(float* to, Vector x) { vst1q_f32(to, x); }
};

}  // namespace

void multiply_floats_neon(const Job& job) {
    multiply_by<Neon>(job);
}

}  // namespace medusa::kernels
