// Computes draft heads on the device that holds their weights.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "heads/weights.h"
#include "llama/backend.h"

namespace medusa {

// A backend for the heads' device; on the CPU it computes in llama.cpp's own threads. Throws Error.
ggml_backend_ptr start_backend(const Heads& heads);

// One ggml graph with its memory: created, filled through context(), closed with finish(), then computed any number of
// times.
class HeadsGraph {
  public:
    HeadsGraph(ggml_backend_t backend, size_t most_tensors);

    ggml_context* context() const { return context_.get(); }
    ggml_tensor* new_input(int64_t columns, int64_t rows, ggml_type type = GGML_TYPE_F32);
    // Throws Error when the backend lacks an operation or memory.
    void finish(ggml_tensor* output);
    // The output's numbers; valid until the next call.
    std::span<const float> compute();
    static void set(ggml_tensor* input, std::span<const float> values);

  private:
    ggml_backend_t backend_;
    ggml_context_ptr context_;
    ggml_gallocr_ptr allocator_;
    ggml_cgraph* graph_ = nullptr;
    ggml_tensor* output_ = nullptr;
    std::vector<float> copy_;  // for an output that the processor cannot read in place
};

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
// How many nodes the graph for this many nodes has. Trees of changing shape ask for many numbers: beyond the smallest,
// a few of them share a graph.
size_t hydra_width(size_t nodes);
// Most tensors that it makes.
size_t hydra_tensors(const Heads& heads);

}  // namespace medusa
