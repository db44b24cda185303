// Drafts behind a node that the host has accepted: a graph of the heads' own, from states that stay on the device.
#pragma once

#include <memory>

#include "heads/graph.h"
#include "in_graph/drafts.h"

namespace medusa::in_graph {

class SecondGraph {
  public:
    // Throws Error, or OutOfMemory.
    explicit SecondGraph(const Heads& heads);

    // Of a graph with states [h, n]: keeps them for the next draft.
    static constexpr size_t kept_tensors = 4;
    ggml_tensor* keep(ggml_context* c, ggml_tensor* states);
    // As Drafts::build() has them, behind `node` of the newest states and the token after it. `drafts` has begun.
    std::span<const float> draft(Drafts& drafts, int node, Token next);

  private:
    void build(Drafts& drafts);

    ggml_backend_ptr backend_;
    ggml_context_ptr context_;
    ggml_backend_buffer_ptr buffer_;
    ggml_tensor* states_ = nullptr;  // F32 [h, Tree::max_size]
    std::unique_ptr<HeadsGraph> graph_;
    ggml_tensor* input_ = nullptr;  // F32 [1, 2]: the node, the token after it
};

}  // namespace medusa::in_graph
