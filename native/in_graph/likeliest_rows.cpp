#include "in_graph/likeliest_rows.h"

#include <algorithm>

#include "drafting/recycling.h"

namespace medusa::in_graph {
namespace {

int64_t count_of(int64_t vocabulary) {
    return std::min<int64_t>(RecyclingTable::width, vocabulary);
}

}  // namespace

int64_t LikeliestRows::numbers(int64_t vocabulary) {
    return count_of(vocabulary) + 1;
}

ggml_tensor* LikeliestRows::build(ggml_context* c, ggml_tensor* logits) {
    vocabulary_ = logits->ne[0];
    const int64_t n = logits->ne[1], count = count_of(vocabulary_);
    ggml_tensor* tokens = largest(c, logits, count);
    ggml_tensor* found = at_places(c, logits, as_index(c, tokens, vocabulary_));
    const auto rank = [&](int64_t at) {
        return ggml_cont(c, ggml_view_2d(c, found, 1, n, found->nb[1], static_cast<size_t>(at) * sizeof(float)));
    };
    ggml_tensor* lead = ggml_sub(c, rank(0), rank(std::min<int64_t>(1, count - 1)));
    return ggml_concat(c, ggml_reshape_1d(c, tokens, n * count), ggml_reshape_1d(c, lead, n), 0);
}

size_t LikeliestRows::read(std::span<const float> found, int n) {
    const auto count = static_cast<size_t>(count_of(vocabulary_)), rows = static_cast<size_t>(n);
    rows_.resize(rows);
    for (size_t row = 0; row < rows; ++row) {
        rows_[row].tokens.resize(count);
        for (size_t i = 0; i < count; ++i) rows_[row].tokens[i] = static_cast<Token>(found[row * count + i]);
        rows_[row].lead = found[rows * count + row];
    }
    return rows * (count + 1);
}

Likeliest LikeliestRows::row(int row) const {
    const auto at = static_cast<size_t>(row);
    return at < rows_.size() ? rows_[at] : Likeliest();
}

}  // namespace medusa::in_graph
