// The likeliest tokens of rows of logits in a few numbers, instead of whole rows.
#pragma once

#include <span>
#include <vector>

#include "decoding/in_graph.h"
#include "ggml.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {

// What sampling looks at.
class RankedRows {
  public:
    // How many numbers a row brings.
    static int64_t numbers(int64_t vocabulary);
    // F32 numbers from logits [vocabulary, n]: the logits, the tokens, whether the row is all numbers.
    static ggml_tensor* build(ggml_context* c, ggml_tensor* logits);
    // Reads those numbers, for n rows.
    void read(std::span<const float> found, int n);
    // As Target::ranked(): empty if the row holds NaN, or if a tie at its end leaves open which tokens these are.
    std::span<const RankedToken> row(int row) const;

  private:
    std::vector<std::vector<RankedToken>> rows_;
};
inline constexpr size_t ranked_tensors = largest_tensors + 24;  // most that build() makes

// What drafters learn from the rows of a greedy step (Token Recycling).
class LikeliestRows {
  public:
    // How many numbers a row brings.
    static int64_t numbers(int64_t vocabulary);
    // F32 numbers from logits [vocabulary, n]: the tokens of each row, then the lead of each.
    ggml_tensor* build(ggml_context* c, ggml_tensor* logits);
    // Reads those numbers, for n rows, from the start of `found`. Returns how many there are.
    size_t read(std::span<const float> found, int n);
    void clear() { rows_.clear(); }
    // As Target::likeliest(), but a tie at the end of a row leaves open which of its tokens are named.
    Likeliest row(int row) const;

  private:
    int64_t vocabulary_ = 0;
    std::vector<Likeliest> rows_;
};
inline constexpr size_t likeliest_tensors = largest_tensors + 16;  // most that build() makes

}  // namespace medusa::in_graph
