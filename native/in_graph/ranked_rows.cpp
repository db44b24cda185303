#include "in_graph/ranked_rows.h"

#include <algorithm>

namespace medusa::in_graph {
namespace {

// One more than are looked at tells whether the last of those is a tie.
int64_t count_of(int64_t vocabulary) {
    return std::min<int64_t>(most_ranked + 1, vocabulary);
}

}  // namespace

int64_t RankedRows::numbers(int64_t vocabulary) {
    return 2 * count_of(vocabulary) + 1;
}

ggml_tensor* RankedRows::build(ggml_context* c, ggml_tensor* logits) {
    const int64_t n = logits->ne[1], count = count_of(logits->ne[0]);
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

}  // namespace medusa::in_graph
