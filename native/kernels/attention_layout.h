// What the threads of one attention keep in scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace medusa::kernels {

struct SeenBlock {
    int32_t cell;  // the first of 16
    uint16_t all;  // a bit for each cell that all rows see
};

// What one part keeps for its rows. Other parts read `tops`, `totals`, `sums` and the magnitudes of values: fetching a
// line that another core has written takes as long as a line from memory, so these are dense.
struct AttentionPart {
    int64_t* range;         // first and last of this part's blocks; whether own_most has anything
    float* tops;            // [row]: the largest score of this part
    double* totals;         // [row]: the sum of the weights
    double* total_lanes;    // [row][8 lanes]
    float* q;               // [row][key_size]
    const char** mask;      // [row]
    float* largest;         // [row][16 lanes] of this part's scores; then, in the first, that of all parts
    float* sums;            // [row][value_size], each above its start, see sum_start()
    float* starts;          // [row][value_size]
    float* floats;          // 16 cells
    SeenBlock* blocks;      // those that any row sees
    uint16_t* own_most;     // [row][value_size]: largest magnitude of the values that not all rows see; of the first
                            // row of each token and key head
    uint16_t* shared_most;  // [key head][value_size]: of those that all see

    int64_t first() const { return range[0]; }
    int64_t last() const { return range[1]; }
    int64_t count() const { return range[1] - range[0]; }
    int64_t& has_own() const { return range[2]; }
    void share(int64_t blocks_found, int64_t part, int64_t parts) const {
        range[0] = blocks_found * part / parts;
        range[1] = blocks_found * (part + 1) / parts;
    }
};

// Scores [block][row][16 cells] of the blocks that any row sees, then the parts.
struct AttentionLayout {
    int64_t rows, key_heads, value_size;
    size_t offsets[13];  // of the fields of AttentionPart
    size_t scores_bytes, part_bytes;

    AttentionPart part(void* scratch, int i) const;
    size_t own_most_bytes() const { return static_cast<size_t>(rows * value_size) * sizeof(uint16_t); }
    size_t shared_most_bytes() const { return static_cast<size_t>(key_heads * value_size) * sizeof(uint16_t); }
    int64_t shared_row(int64_t key_head) const { return key_head * value_size; }
};

AttentionLayout attention_layout(const Attention& a, int64_t rows, int parts);

}  // namespace medusa::kernels
