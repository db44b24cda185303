// Drafts behind a node that the host has accepted: a graph of the heads' own, from states that stay on the device.
#pragma once

#include <memory>

#include "heads/graph.h"
#include "in_graph/drafts.h"
#include "in_graph/drawn_levels.h"

namespace medusa::in_graph {

class SecondGraph {
  public:
    // Throws Error, or OutOfMemory.
    explicit SecondGraph(const Heads& heads);

    // Of a graph with states [h, n]: keeps them for the next draft.
    static constexpr size_t kept_tensors = 4;
    ggml_tensor* keep(ggml_context* c, ggml_tensor* states);
    // As Drafts::build() has them, behind `node` of the newest states and the token after it. The prefix layer, if any,
    // has begun.
    std::span<const float> draft(Drafts& drafts, int node, Token next);
    // Without drafts, for heads behind such a layer: what it needs of the path to `node`.
    void follow(Prefix& prefix, int node);
    // Where tokens are drawn: asked behind `node`, level by level.
    DrawnLevels& drawn(Drafts& drafts, int node);

  private:
    struct Graph {
        std::unique_ptr<HeadsGraph> graph;
        ggml_tensor* input;  // F32 [1, 2]: the node, the token after it
        GreedyAcceptance accepted;
    };
    Graph begin(size_t most_tensors);
    std::span<const float> compute(Graph& graph, int node, Token next);

    const Heads& heads_;
    ggml_backend_ptr backend_;
    ggml_context_ptr context_;
    ggml_backend_buffer_ptr buffer_;
    ggml_tensor* states_ = nullptr;  // F32 [h, Tree::max_size]
    Graph drafts_{}, follows_{};
    std::unique_ptr<DrawnLevels> drawn_;
};

}  // namespace medusa::in_graph
