// Hydra++'s prefix layer in the model's own graph, with a cache on the device that the host's layer shares.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "decoding/tree.h"
#include "heads/prefix_layer.h"
#include "in_graph/acceptance.h"

namespace medusa::in_graph {

// What a graph does with drafts. A graph of one kind never replaces one of another.
enum class GraphKind {
    drafts,   // it drafts after the accepted node
    follows,  // it drafts nothing, and keeps what later drafts need from the accepted path
    prompt    // its tokens are part of the prompt
};

// All nodes that a step may accept write into the cells after those of committed tokens; the next step overwrites what
// was refused.
class Prefix {
  public:
    // For trees at most `depth` deep, and as many tokens as the context has. Throws OutOfMemory.
    Prefix(std::shared_ptr<const Heads> heads, int depth, int context_size);

    const std::shared_ptr<PrefixCache>& cache() const { return cache_; }
    // Whether the layer reads the prompt, too.
    bool reads_prompt() const { return !heads_->metadata().prefix.from_answer; }

    // The layer's output at the accepted node, [h, 1], from states [h, n].
    ggml_tensor* build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted);
    // Only fills the cells of the accepted path, or those of all states; returns some of their numbers.
    ggml_tensor* follow(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted);
    ggml_tensor* read(ggml_context* c, ggml_tensor* states);

    // A tree, or this many tokens of the prompt, will be decoded at `position`.
    void begin(const Tree& tree, int position);
    void begin_prompt(int position);
    // For the newest graph of that kind.
    void set_inputs(GraphKind kind);
    // This many nodes, or tokens, were accepted; 0: it is not known which.
    void end(int accepted);
    void rolled_back(int position) { cache_->roll_back(position); }

  private:
    PrefixInputs inputs(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted, GraphKind kind);

    std::shared_ptr<const Heads> heads_;
    int64_t rows_;  // nodes on the longest path
    std::shared_ptr<PrefixCache> cache_;
    // By kind. For each node, what follows if it is the one: its path, from the root down, padded with itself; its
    // depth; the cell of the root; its own cell. F32 [rows_ + 3, n]. For a prompt, the cell of its first token.
    std::array<ggml_tensor*, 3> input_{};
    std::vector<float> numbers_;
};

}  // namespace medusa::in_graph
