// What drafters learn from the rows of a greedy step: the likeliest tokens of each (Token Recycling), in a few numbers.
#pragma once

#include <span>
#include <vector>

#include "decoding/in_graph.h"
#include "ggml.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {

class LikeliestRows {
  public:
    // That a row brings.
    static int64_t numbers(int64_t vocabulary);
    // F32 numbers of logits [vocabulary, n]: the tokens of each row, then the lead of each.
    ggml_tensor* build(ggml_context* c, ggml_tensor* logits);
    // Those numbers, of n rows, first in `found`. Returns how many they are.
    size_t read(std::span<const float> found, int n);
    void clear() { rows_.clear(); }
    // As Target::likeliest(), but that equals at the end of a row leave open which of them it names.
    Likeliest row(int row) const;

  private:
    int64_t vocabulary_ = 0;
    std::vector<Likeliest> rows_;
};
inline constexpr size_t likeliest_tensors = largest_tensors + 16;  // that build() makes, at most

}  // namespace medusa::in_graph
