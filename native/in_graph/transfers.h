// What a step sends from a device to the host, for models whose output matrix is on that device.
#pragma once

#include <cstdint>
#include <optional>

#include "decoding/tree.h"

namespace medusa::in_graph {

// What the transfers depend on in draft heads.
struct HeadsShape {
    bool reads_path = false, has_prefix = false;
    int head_count = 0, output_rows = 0;
};

// In bytes.
struct StepTransfers {
    // When the host samples, accepts and drafts: rows of logits, states, rows of the heads' output matrices.
    int64_t logits = 0, states = 0, heads = 0;
    // When the graph accepts at temperature 0: with this tree, and with trees grown in each step.
    int64_t greedy = 0, grown = 0;
    // When it names the likeliest tokens for this tree's nodes, from which the host samples.
    int64_t sampled = 0;
};

// For a step with this tree. recycled: nodes that recycled tokens are learned from.
StepTransfers transfers_of(const Tree& tree, int vocab_size, int embedding_size, const std::optional<HeadsShape>& heads,
                           int recycled);

}  // namespace medusa::in_graph
