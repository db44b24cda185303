// Attention of a few query rows over a cache. A row's result depends neither on how many rows there are, nor on where
// in the cache the cells lie, nor on which thread works on which of them: drafted and plain decoding then compute the
// same, on any number of threads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace medusa::kernels {

// How a cell's numbers are stored: halves, or ggml's blocks of 32 with a half as their scale.
enum class CellType : uint8_t { f16, q8_0, q4_0 };

// Strides are in bytes. Rows are numbered head group by head group, token by token, head by head: rows that share keys
// and values, and nearly a mask, are neighbours.
struct Attention {
    const char* q;  // F32 [head][token][key_size]
    size_t q_token, q_head;
    const char* k;  // [key head][cell][key_size]
    size_t k_cell, k_head;
    const char* v;  // [key head][cell][value_size]
    size_t v_cell, v_head;
    const char* mask;  // F16 [token][cell], added to the scaled products; nullptr: none
    size_t mask_token;
    const float* sinks;  // [head]: the score of one more cell, which has no value; nullptr: none
    float* out;          // [token][head][value_size]
    float scale;
    float cap;  // scores s become cap * tanh(s / cap) before the mask is added; 0: no cap
    CellType key_type, value_type;
    int64_t key_size, value_size, cells, tokens, heads, key_heads;

    int64_t rows() const { return heads * tokens; }
    int64_t group() const { return heads / key_heads; }  // heads that share a key head
    int64_t rows_per_key_head() const { return group() * tokens; }
    int64_t token_of(int64_t row) const { return row % rows_per_key_head() / group(); }
    int64_t head_of(int64_t row) const { return row / rows_per_key_head() * group() + row % group(); }
};

inline constexpr int64_t attention_lanes = 16;
inline constexpr int64_t attention_largest_head = 256;
inline constexpr int64_t quantized_block = 32;

constexpr std::optional<CellType> cell_type(std::string_view name) {
    if (name == "f16") return CellType::f16;
    if (name == "q8_0") return CellType::q8_0;
    if (name == "q4_0") return CellType::q4_0;
    return std::nullopt;
}

// Static for the same reason as sum_start() below.
static constexpr size_t block_bytes(CellType type) {
    return type == CellType::q8_0 ? 34 : 18;
}

// Bytes of one head's numbers in a cell.
static constexpr size_t cell_bytes(CellType type, int64_t size) {
    const auto n = static_cast<size_t>(size);
    return type == CellType::f16 ? 2 * n : n / quantized_block * block_bytes(type);
}

constexpr bool attention_fits(CellType type, int64_t size) {
    return size > 0 && size <= attention_largest_head &&
           size % (type == CellType::f16 ? attention_lanes : quantized_block) == 0;
}

// Work on some rows, whose cells are divided among `parts` threads. All parts go through the phases side by side: no
// part begins a phase before all have finished the one before.
struct AttentionShare {
    int64_t begin, end;  // rows
    int part, parts;
    void* scratch;  // for all parts: attention_scratch() bytes, aligned to 64
};
inline constexpr int attention_phases = 4;

// Bytes of scratch for this many rows, a multiple of 64.
size_t attention_scratch(const Attention& a, int64_t rows, int parts);
// How many rows are worked on together, so that what is kept for them stays in the caches.
int64_t attention_batch(const Attention& a);
// The same for a thread that shares no cells: where rows from `begin` on end. In a text, each token sees one cell more
// than the one before; so few tokens are worked on together, which leave out what none of them sees.
int64_t attention_batch_end(const Attention& a, int64_t begin);
// Whether threads divide the cells of all rows, with a barrier after each phase, or else the rows.
bool attention_shares_cells(const Attention& a, int threads);

// Where a sum of weights x values starts so that its floats do not depend on the order of the cells: from 3B, where B
// is a power of two above any part of the sum, every addition rounds to the same multiple, B / 2^22. Ties, which could
// go either way, cannot occur, as the last bit of every weight is set. What two threads have each added to 3B is such a
// multiple, so the sum of both is exact. The weights add up to `total`; `most` is the largest magnitude among the
// values, as F16 bits. Static, so that each file's copy keeps to its instruction set.
static inline float sum_start(double total, uint16_t most) {
    // Denormals count as the smallest normal number; infinities and NaN come through anyway.
    const uint32_t clamped = most < 0x0400 ? 0x0400u : most > 0x7BFF ? 0x7BFFu : most;
    const float value = std::bit_cast<float>((clamped << 13) + (112u << 23));
    const float bound = static_cast<float>(total) * 1.000001f * value;
    const uint32_t power = (std::bit_cast<uint32_t>(bound) & 0x7F800000u) + (2u << 23);
    return std::bit_cast<float>(power | 0x00400000u);
}

// The largest magnitude of a quantized number, in steps of its block's scale.
static inline double most_steps(CellType type) {
    return type == CellType::f16 ? 1 : type == CellType::q8_0 ? 128 : 8;
}

// Added to a weight and subtracted again, it leaves a multiple of 2^-35: such numbers add up exactly in any order.
inline constexpr double weight_grid = 1.5 * (1 << 17);

// exp() of numbers <= 0 within 2 units in the last place; below `smallest` it is 0, which keeps denormals out. The last
// bit of all others is set.
namespace exponential {
inline constexpr float smallest = -87.0f, log2e = 1.44269504f, ln2_high = 0.693145752f, ln2_low = 1.42860677e-6f;
inline constexpr float taylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
}  // namespace exponential

}  // namespace medusa::kernels
