#include "in_graph/named_rows.h"

#include <algorithm>

#include "drafting/recycling.h"

namespace medusa::in_graph {
namespace {

// One more than are looked at, to tell whether the last of those is a tie.
int64_t ranked_count(int64_t vocabulary) {
    return std::min<int64_t>(most_ranked + 1, vocabulary);
}

int64_t likeliest_count(int64_t vocabulary) {
    return std::min<int64_t>(RecyclingTable::width, vocabulary);
}

}  // namespace

int64_t RankedRows::numbers(int64_t vocabulary) {
    return 2 * ranked_count(vocabulary) + 1;
}

ggml_tensor* RankedRows::build(ggml_context* c, ggml_tensor* logits) {
    const int64_t n = logits->ne[1], count = ranked_count(logits->ne[0]);
    const auto flat = [&](ggml_tensor* numbers) { return ggml_reshape_1d(c, numbers, ggml_nelements(numbers)); };
    ggml_tensor* tokens = largest(c, logits, count);
    ggml_tensor* found = at_places(c, logits, as_index(c, tokens, logits->ne[0]));
    // As in accept_greedily().
    ggml_tensor* sums = ggml_reshape_2d(c, ggml_sum_rows(c, logits), n, 1);
    ggml_tensor* is_number = ggml_step(c, ggml_scale_bias(c, ggml_abs(c, sums), 1.0f, 1.0f));
    return ggml_concat(c, ggml_concat(c, flat(found), flat(tokens), 0), flat(is_number), 0);
}

void RankedRows::read(std::span<const float> found, int n) {
    rows_.assign(static_cast<size_t>(n), {});
    const size_t count = (found.size() / rows_.size() - 1) / 2, all = count * rows_.size();
    for (size_t at = 0; at < rows_.size(); ++at) {
        std::vector<RankedToken>& row = rows_[at];
        if (found[2 * all + at] != 1.0f) continue;
        for (size_t i = at * count; i < (at + 1) * count; ++i) {
            row.push_back({static_cast<Token>(found[all + i]), found[i]});
        }
        std::sort(row.begin(), row.end(), [](const RankedToken& a, const RankedToken& b) {
            return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
        });
        if (count <= most_ranked) continue;
        const bool tie = !(row[most_ranked - 1].logit > row[most_ranked].logit);
        row.resize(tie ? 0 : most_ranked);
    }
}

std::span<const RankedToken> RankedRows::row(int row) const {
    return rows_.at(static_cast<size_t>(row));
}

int64_t LikeliestRows::numbers(int64_t vocabulary) {
    return likeliest_count(vocabulary) + 1;
}

ggml_tensor* LikeliestRows::build(ggml_context* c, ggml_tensor* logits) {
    vocabulary_ = logits->ne[0];
    const int64_t n = logits->ne[1], count = likeliest_count(vocabulary_);
    ggml_tensor* tokens = largest(c, logits, count);
    ggml_tensor* found = at_places(c, logits, as_index(c, tokens, vocabulary_));
    const auto rank = [&](int64_t at) {
        return ggml_cont(c, ggml_view_2d(c, found, 1, n, found->nb[1], static_cast<size_t>(at) * sizeof(float)));
    };
    ggml_tensor* lead = ggml_sub(c, rank(0), rank(std::min<int64_t>(1, count - 1)));
    return ggml_concat(c, ggml_reshape_1d(c, tokens, n * count), ggml_reshape_1d(c, lead, n), 0);
}

size_t LikeliestRows::read(std::span<const float> found, int n) {
    const auto count = static_cast<size_t>(likeliest_count(vocabulary_)), rows = static_cast<size_t>(n);
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
