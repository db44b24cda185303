// The reference of attention, one number at a time: the fast kernels do the same operations in the same order.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention_layout.h"
#include "kernels/format.h"

namespace medusa::kernels {
namespace {

float half(uint16_t bits) {
    return ggml_fp16_to_fp32(bits);
}

uint16_t bits_at(const char* at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return bits;
}

// Number i of a cell.
float number(CellType type, const char* cell, int64_t i) {
    if (type == CellType::f16) return half(bits_at(cell + 2 * i));
    const int64_t block = i / quantized_block, j = i % quantized_block;
    const char* from = cell + static_cast<int64_t>(block_bytes(type)) * block;
    const float scale = half(bits_at(from));
    if (type == CellType::q8_0) return scale * static_cast<float>(static_cast<int8_t>(from[2 + j]));
    const auto pair = static_cast<uint8_t>(from[2 + j % 16]);
    return scale * static_cast<float>((j < 16 ? pair & 15 : pair >> 4) - 8);
}

// Bits of what limits number i: its own magnitude, or the scale of its block.
uint16_t magnitude(CellType type, const char* cell, int64_t i) {
    if (type == CellType::f16) return bits_at(cell + 2 * i) & 0x7FFF;
    return bits_at(cell + i / quantized_block * static_cast<int64_t>(block_bytes(type))) & 0x7FFF;
}

// 16 lanes, then their sum as a tree.
float dot(const char* q, CellType type, const char* k, int64_t size) {
    float lanes[attention_lanes] = {};
    for (int64_t i = 0; i < size; ++i) {
        float x;
        std::memcpy(&x, q + 4 * i, 4);
        lanes[i % attention_lanes] = std::fma(x, number(type, k, i), lanes[i % attention_lanes]);
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

// tanh() within a few units in the last place of 1.
float tanh_of(float x) {
    const float e = exp_of(-2 * std::abs(x));
    return std::copysign((1 - e) / (1 + e), x);
}

double rounded(float weight) {
    return weight + weight_grid - weight_grid;
}

void attend_row(const Attention& a, int64_t row, std::vector<float>& scores, std::vector<float>& weights) {
    const int64_t token = a.token_of(row), head = a.head_of(row), key_head = head / a.group();
    const char *q = a.q + token * a.q_token + head * a.q_head, *keys = a.k + key_head * a.k_head;
    float largest = a.sinks ? a.sinks[head] : -INFINITY;
    for (int64_t cell = 0; cell < a.cells; ++cell) {
        const float mask = a.mask ? half(bits_at(a.mask + token * a.mask_token + 2 * cell)) : 0.0f;
        const float product = dot(q, a.key_type, keys + cell * a.k_cell, a.key_size);
        const float score =
            a.cap != 0 ? std::fma(a.cap, tanh_of(product * (a.scale / a.cap)), mask) : std::fma(product, a.scale, mask);
        scores[cell] = mask == -INFINITY ? mask : score;
        largest = std::max(largest, scores[cell]);
    }
    double total = a.sinks && a.sinks[head] != -INFINITY ? rounded(exp_of(a.sinks[head] - largest)) : 0;
    for (int64_t cell = 0; cell < a.cells; ++cell) {
        weights[cell] = largest == -INFINITY ? 0 : exp_of(scores[cell] - largest);
        total += rounded(weights[cell]);
    }
    const float inverse = total > 0 ? static_cast<float>(1 / total) : 0;
    for (int64_t d = 0; d < a.value_size; ++d) {
        const auto values = [&](int64_t cell) { return a.v + key_head * a.v_head + cell * a.v_cell; };
        uint16_t most = 0;
        for (int64_t cell = 0; cell < a.cells; ++cell) {
            if (scores[cell] != -INFINITY) most = std::max(most, magnitude(a.value_type, values(cell), d));
        }
        const float start = sum_start(total * most_steps(a.value_type), most);
        float sum = start;
        for (int64_t cell = 0; cell < a.cells; ++cell) {
            sum = std::fma(weights[cell], number(a.value_type, values(cell), d), sum);
        }
        a.out[(token * a.heads + head) * a.value_size + d] = (sum - start) * inverse;
    }
}

}  // namespace

void attend_scalar(const Attention& a, const AttentionShare& share, int phase) {
    if (phase > 0) return;
    const int64_t rows = share.end - share.begin;
    std::vector<float> scores(static_cast<size_t>(a.cells)), weights(scores.size());
    for (int64_t r = rows * share.part / share.parts; r < rows * (share.part + 1) / share.parts; ++r) {
        attend_row(a, share.begin + r, scores, weights);
    }
}

}  // namespace medusa::kernels
