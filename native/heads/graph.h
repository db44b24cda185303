// Draft heads as graphs.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "heads/weights.h"
#include "llama/device_graph.h"

namespace medusa {

// weight * x + bias
ggml_tensor* linear(ggml_context* c, const Linear& layer, ggml_tensor* x);
// x + SiLU(Wx + b) (Medusa 2.1)
ggml_tensor* residual_block(ggml_context* c, const Linear& layer, ggml_tensor* x);

// Medusa heads (Medusa 2.1): each depends on the hidden state alone. Logits of the first `depth` heads at a hidden
// state [h, 1]: [rows, depth].
ggml_tensor* medusa_logits(ggml_context* c, const Heads& heads, ggml_tensor* state, int depth);
// Most tensors that it makes.
size_t medusa_tensors(const Heads& heads, int depth);

// Hydra heads (Hydra 3): a head reads the hidden state and the tokens drafted so far. Logits of a head at n nodes, each
// given as cat(h, emb(root), emb(node 1), ..) [h * (head + 2), n]: [rows, n].
ggml_tensor* hydra_logits(ggml_context* c, const Heads& heads, int head, ggml_tensor* paths);
// A recurrent head's cell: states [h, n] of n nodes, from the states of their parents and the embeddings of their
// tokens, [h, n] each. R [s; e] + D (SiLU(G y) * (U y)), y = [norm(s); norm(e)].
ggml_tensor* cell_states(ggml_context* c, const Heads& heads, ggml_tensor* parents, ggml_tensor* embeddings);
inline constexpr size_t cell_tensors = 24;  // most that it makes

// How many nodes the graph for this many nodes has. Trees of changing shape ask for many numbers: beyond the smallest,
// a few of them share a graph.
size_t level_width(size_t nodes);
// Most tensors that it makes.
size_t hydra_tensors(const Heads& heads);

}  // namespace medusa
