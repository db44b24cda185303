// Greedy acceptance of a tree in ggml operators: what accept_draft() does at temperature 0, but no rows of logits come
// to the host.
#pragma once

#include <span>
#include <vector>

#include "decoding/tree.h"
#include "ggml.h"

namespace medusa::in_graph {

// The tree that a graph over n rows of logits accepts: a single input, so that one transfer is enough.
class TreeInput {
  public:
    TreeInput() = default;
    TreeInput(ggml_context* c, int64_t nodes);

    // As many nodes as the graph has rows; tokens[i] belongs to node i.
    void set(const Tree& tree, std::span<const Token> tokens);

    int64_t nodes() const { return input_->ne[0]; }
    ggml_tensor* tokens(ggml_context* c) const { return part(c, 0, 1); }   // [n, 1]
    ggml_tensor* parents(ggml_context* c) const { return part(c, 1, 1); }  // [n, 1]; the root's is itself
    // [n, 1]: larger the deeper a node is, and at the same depth larger the earlier it is.
    ggml_tensor* order(ggml_context* c) const { return part(c, 2, 1); }
    // [n, n]: row i is 1 at the nodes on the path from below the root down to i.
    ggml_tensor* paths(ggml_context* c) const { return part(c, 3, nodes()); }

  private:
    ggml_tensor* part(ggml_context* c, int64_t first, int64_t rows) const;

    ggml_tensor* input_ = nullptr;  // [n, 3 + n]
    ggml_tensor* held_ = nullptr;   // the same on the device: views of an input would each be transferred separately
    std::vector<float> values_;
};

// All F32 except for the index, one number each.
struct GreedyAcceptance {
    ggml_tensor* node;         // the deepest accepted node
    ggml_tensor* index;        // the same, as I32
    ggml_tensor* next;         // the token after it
    ggml_tensor* number_rows;  // rows without NaN; if that is not all rows, node and next mean nothing
};

// logits [vocabulary, n] for the tree's nodes. Siblings carry distinct tokens.
inline constexpr size_t acceptance_tensors = 96;  // most that it makes, including its input
GreedyAcceptance accept_greedily(ggml_context* c, ggml_tensor* logits, const TreeInput& tree);

}  // namespace medusa::in_graph
