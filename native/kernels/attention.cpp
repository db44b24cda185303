// The reference of attention, one number at a time: the fast kernels do the same operations in the same order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "kernels/format.h"

namespace medusa::kernels {
namespace {

float half_at(const char* at, int64_t i) {
    ggml_fp16_t h;
    std::memcpy(&h, at + 2 * i, 2);
    return ggml_fp16_to_fp32(h);
}

uint16_t magnitude(const char* at) {
    uint16_t bits;
    std::memcpy(&bits, at, 2);
    return bits & 0x7FFF;
}

// 16 lanes, then their sum as a tree.
float dot(const char* q, const char* k, int64_t size) {
    float lanes[attention_lanes] = {};
    for (int64_t i = 0; i < size; ++i) {
        float x;
        std::memcpy(&x, q + 4 * i, 4);
        lanes[i % attention_lanes] = std::fma(x, half_at(k, i), lanes[i % attention_lanes]);
    }
    float quarter[4];
    for (int b = 0; b < 4; ++b) {
        const float* l = lanes + 4 * b;
        quarter[b] = (l[0] + l[2]) + (l[1] + l[3]);
    }
    return (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]);
}

float exp_of(float x) {
    using namespace exponential;
    if (x < smallest) return 0;
    const float n = std::nearbyint(x * log2e);
    const float r = std::fma(n, -ln2_low, std::fma(n, -ln2_high, x));
    float p = taylor[0];
    for (int i = 1; i < 7; ++i) p = std::fma(p, r, taylor[i]);
    p = std::ldexp(p, static_cast<int>(n));
    return std::bit_cast<float>(std::bit_cast<uint32_t>(p) | 1u);
}

}  // namespace

void attend_scalar(const Attention& a, int64_t begin, int64_t end, void*) {
    std::vector<float> scores(static_cast<size_t>(a.cells)), weights(scores.size());
    for (int64_t row = begin; row < end; ++row) {
        const int64_t key_head = row / (a.group() * a.tokens), token = row % (a.group() * a.tokens) / a.group();
        const int64_t head = key_head * a.group() + row % a.group();
        const char* q = a.q + token * a.q_token + head * a.q_head;
        float largest = -INFINITY;
        for (int64_t cell = 0; cell < a.cells; ++cell) {
            const float mask = a.mask ? half_at(a.mask + token * a.mask_token, cell) : 0.0f;
            const float product = dot(q, a.k + key_head * a.k_head + cell * a.k_cell, a.key_size);
            scores[cell] = mask == -INFINITY ? mask : std::fma(product, a.scale, mask);
            largest = std::max(largest, scores[cell]);
        }
        // In double precision, the order of the cells is lost when the sum is rounded to float.
        double lanes[8] = {};
        for (int64_t cell = 0; cell < a.cells; ++cell) {
            weights[cell] = largest == -INFINITY ? 0 : exp_of(scores[cell] - largest);
            lanes[cell % 8] += weights[cell];
        }
        double total = 0;
        for (const double lane : lanes) total += lane;
        const float inverse = total > 0 ? static_cast<float>(1 / total) : 0;
        for (int64_t d = 0; d < a.value_size; ++d) {
            const auto value = [&](int64_t cell) { return a.v + key_head * a.v_head + cell * a.v_cell + 2 * d; };
            uint16_t most = 0;
            for (int64_t cell = 0; cell < a.cells; ++cell) {
                if (scores[cell] != -INFINITY) most = std::max(most, magnitude(value(cell)));
            }
            const float start = sum_start(total, most);
            float sum = start;
            for (int64_t cell = 0; cell < a.cells; ++cell) sum = std::fma(weights[cell], half_at(value(cell), 0), sum);
            a.out[(token * a.heads + head) * a.value_size + d] = (sum - start) * inverse;
        }
    }
}

}  // namespace medusa::kernels
