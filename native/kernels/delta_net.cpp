// The reference of the gated delta net: the fast kernels do the same operations in the same order.
#include "kernels/delta_net.inl"

namespace medusa::kernels {
namespace {

struct Lanes {
    float x[16] = {};

    static Lanes load(const float* at) {
        Lanes out;
        std::copy(at, at + 16, out.x);
        return out;
    }
    static Lanes all(float value) {
        Lanes out;
        std::fill(out.x, out.x + 16, value);
        return out;
    }
    void store(float* at) const { std::copy(x, x + 16, at); }
    void stream(float* at) const { store(at); }
    static void streamed() {}
    Lanes times(const Lanes& other) const {
        Lanes out;
        for (int i = 0; i < 16; ++i) out.x[i] = x[i] * other.x[i];
        return out;
    }
    Lanes scaled(float factor) const { return times(all(factor)); }
    // x * by + to
    Lanes fma(const Lanes& by, const Lanes& to) const {
        Lanes out;
        for (int i = 0; i < 16; ++i) out.x[i] = std::fma(x[i], by.x[i], to.x[i]);
        return out;
    }
    float sum() const {
        Lanes left = *this;
        for (int half = 8; half > 0; half /= 2) {
            for (int i = 0; i < half; ++i) left.x[i] += left.x[i + half];
        }
        return left.x[0];
    }
};

}  // namespace

void delta_net_scalar(const DeltaNet& net, int64_t begin, int64_t end) {
    recur<Lanes>(net, begin, end);
}

}  // namespace medusa::kernels
