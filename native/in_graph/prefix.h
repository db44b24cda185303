// Hydra++'s prefix layer in the model's own graph: it reads the answer, with a cache of its own on the device.
#pragma once

#include <memory>
#include <vector>

#include "decoding/tree.h"
#include "ggml-cpp.h"
#include "heads/weights.h"
#include "in_graph/acceptance.h"

namespace medusa::in_graph {

// Cell i is that of the token of position start + i. All nodes that a step may accept write into the cells behind those
// of committed tokens; what was refused is written over by the next step.
class Prefix {
  public:
    // For trees of at most `depth`, and as many tokens as the context has. Throws OutOfMemory.
    Prefix(std::shared_ptr<const Heads> heads, int depth, int context_size);

    // The layer's output at the accepted node, [h, 1], of states [h, n].
    ggml_tensor* build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted);
    // A tree is decoded at `position`. A token that does not follow the last one starts the layer anew.
    void begin(const Tree& tree, int position);
    void set_inputs();
    // So many nodes were accepted; 0: it is not known which.
    void end(int accepted);
    // Tokens from `position` on are gone.
    void rolled_back(int position);

  private:
    std::shared_ptr<const Heads> heads_;
    int64_t rows_, capacity_;  // nodes of the longest path; cells
    ggml_context_ptr context_;
    ggml_backend_buffer_ptr buffer_;
    ggml_tensor *keys_ = nullptr, *values_ = nullptr;  // F16 [cell width, capacity]
    // Of each node, what follows if it is the one: its path, from the root down, padded with itself; how far down it
    // is; the cell of the root; its own cell.
    ggml_tensor* input_ = nullptr;  // F32 [rows_ + 3, n]
    std::vector<float> numbers_;
    int start_ = 0, count_ = 0;  // position of the first cell; cells of committed tokens
};

}  // namespace medusa::in_graph
