// Attention of a few query rows over an F16 cache, such that a row's result depends neither on how many rows there are
// nor on where in the cache the cells lie: drafted and plain decoding then compute the same.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace medusa::kernels {

// Strides are in bytes. Rows are numbered head group by head group, token by token, head by head: those that share keys
// and values, and nearly a mask, are neighbours.
struct Attention {
    const char* q;  // F32 [head][token][key_size]
    size_t q_token, q_head;
    const char* k;  // F16 [key head][cell][key_size]
    size_t k_cell, k_head;
    const char* v;  // F16 [key head][cell][value_size]
    size_t v_cell, v_head;
    const char* mask;  // F16 [token][cell], added to the scaled products; nullptr: none
    size_t mask_token;
    float* out;  // [token][head][value_size]
    float scale;
    int64_t key_size, value_size, cells, tokens, heads, key_heads;

    int64_t rows() const { return heads * tokens; }
    int64_t group() const { return heads / key_heads; }  // heads that share a key head
};

inline constexpr int64_t attention_lanes = 16;
inline constexpr int64_t attention_tile = 8;  // rows at a time
inline constexpr int64_t attention_largest_head = 256;

// Sizes the kernels take.
constexpr bool attention_fits(int64_t key_size, int64_t value_size, int64_t cells) {
    return key_size > 0 && value_size > 0 && key_size % attention_lanes == 0 && value_size % attention_lanes == 0 &&
           key_size <= attention_largest_head && value_size <= attention_largest_head && cells > 0 &&
           cells % attention_lanes == 0;
}

// Floats for the keys of 16 cells, or for the products of all rows with them.
constexpr int64_t attention_work(int64_t key_size) {
    const int64_t keys = attention_lanes * key_size, products = attention_tile * attention_lanes * attention_lanes;
    return keys > products ? keys : products;
}

// Distance between the scores of two rows.
constexpr int64_t attention_stride(int64_t cells) {
    return cells + attention_lanes;
}

// Scratch bytes of one thread, a multiple of 64.
constexpr size_t attention_scratch(int64_t key_size, int64_t value_size, int64_t cells) {
    const int64_t scores = attention_tile * attention_stride(cells) * 4, work = attention_work(key_size) * 4;
    const int64_t sums = 2 * attention_tile * value_size * 4, most = (attention_tile + 1) * value_size * 2;
    return (static_cast<size_t>(scores + work + sums + most + cells / attention_lanes) + 127) / 64 * 64;
}

// Where a sum of weights x values starts so that its floats do not depend on the order of the cells: from 3B, where B
// is a power of two above any part of the sum, every addition rounds to the same multiple, B / 2^22. Ties, which would
// go to either side, cannot occur, as the last bit of every weight is set. The weights add up to `total`; `most` is the
// largest magnitude among the values, as F16 bits. Static, so that each file's copy keeps to its instruction set.
static inline float sum_start(double total, uint16_t most) {
    // Denormals count as the smallest normal number; infinities and NaN come through anyway.
    const uint32_t clamped = most < 0x0400 ? 0x0400u : most > 0x7BFF ? 0x7BFFu : most;
    const float value = std::bit_cast<float>((clamped << 13) + (112u << 23));
    const float bound = static_cast<float>(total) * 1.000001f * value;
    const uint32_t power = (std::bit_cast<uint32_t>(bound) & 0x7F800000u) + (2u << 23);
    return std::bit_cast<float>(power | 0x00400000u);
}

// exp() of numbers <= 0 within 2 units in the last place; below `smallest` it is 0, which keeps denormals out.
namespace exponential {
inline constexpr float smallest = -87.0f, log2e = 1.44269504f, ln2_high = 0.693145752f, ln2_low = 1.42860677e-6f;
inline constexpr float taylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
}  // namespace exponential

}  // namespace medusa::kernels
