// The recurrence of a gated delta net (Yang et al. 2024, arXiv:2412.06464; one decay for each key number as in Kimi
// Linear, arXiv:2510.26692) over a few tokens: a token's result depends only on the tokens before it, however many
// tokens are computed together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace medusa::kernels {

// A head's state is a matrix of `size` rows, one for each value, of `size` key numbers. A token's step on each row:
// row *= exp(g); delta = (v - row . k) * beta; row += delta * k; out = (row . q) / sqrt(size).
// Strides are in bytes; numbers of a head lie side by side.
struct DeltaNet {
    const char* q;  // [token][query head][size]
    size_t q_token, q_head;
    const char* k;  // [token][key head][size]
    size_t k_token, k_head;
    const char* v;  // [token][head][size]
    size_t v_token, v_head;
    const float* decay;   // [token][head], or [token][head][size]: the logarithm g
    const float* beta;    // [token][head]
    const float* before;  // [head][size][size]: the state before the first token
    float* out;           // [token][head][size]
    // [slot][head][size][size]: slot 0 gets the state after the last token, slot s the one s tokens earlier.
    float* after;
    int64_t after_slot;  // numbers from one slot to the next
    bool decay_by_key;
    bool past_caches;  // write `after` past the caches: it is large and not read soon; it is aligned to 64 bytes
    int64_t size, tokens, heads, query_heads, key_heads, slots;

    int64_t rows() const { return heads * size; }  // in all heads' states
};

inline constexpr int64_t delta_net_lanes = 16;
inline constexpr int64_t delta_net_rows = 4;  // rows worked on together: shares of rows are multiples of it
inline constexpr int64_t delta_net_largest = 256;

constexpr bool delta_net_fits(int64_t size) {
    return size > 0 && size <= delta_net_largest && size % delta_net_lanes == 0;
}

}  // namespace medusa::kernels
