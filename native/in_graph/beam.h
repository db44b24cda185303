// The nodes of grown trees that heads are asked below: the likeliest of a level, by the product of the probabilities
// on the way to them.
#pragma once

#include "ggml.h"

namespace medusa::in_graph {

// Of one graph, level by level.
class Beam {
  public:
    // The likeliest `ranks` rows of logits [rows, columns], in this order: [columns * ranks].
    ggml_tensor* candidates(ggml_context* c, ggml_tensor* logits, int ranks);
    struct Columns {
        ggml_tensor *places, *above;  // I32 [columns]: among the newest candidates; the columns that these are below
    };
    // The next level's: the likeliest candidates of the newest.
    Columns choose(ggml_context* c, int columns);
    // Probabilities of all candidates, then the places chosen, as F32.
    ggml_tensor* brought(ggml_context* c) const;

  private:
    ggml_tensor* reached_ = nullptr;                            // [1, columns]: of the nodes that are asked below
    ggml_tensor* paths_ = nullptr;                              // [ranks, columns]: of the newest candidates
    ggml_tensor *probabilities_ = nullptr, *places_ = nullptr;  // of all levels
};
inline constexpr size_t beam_tensors = 64;  // of a level, at most, without largest_tensors

}  // namespace medusa::in_graph
