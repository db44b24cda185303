// The likeliest tokens of each row of logits: what sampling looks at, in place of whole rows.
#pragma once

#include <span>
#include <vector>

#include "decoding/in_graph.h"
#include "ggml.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {

class RankedRows {
  public:
    // That a row brings.
    static int64_t numbers(int64_t vocabulary);
    // F32 numbers of logits [vocabulary, n]: the logits, the tokens, whether the row is all numbers.
    static ggml_tensor* build(ggml_context* c, ggml_tensor* logits);
    // Those numbers, of n rows.
    void read(std::span<const float> found, int n);
    // As Target::ranked(): empty where the row holds NaN, or equals at its end leave open which tokens these are.
    std::span<const RankedToken> row(int row) const;

  private:
    std::vector<std::vector<RankedToken>> rows_;
};
inline constexpr size_t ranked_tensors = largest_tensors + 24;  // that build() makes, at most

}  // namespace medusa::in_graph
