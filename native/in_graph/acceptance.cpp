#include "in_graph/acceptance.h"

#include <algorithm>

#include "ggml-backend.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {

TreeInput::TreeInput(ggml_context* c, int64_t nodes)
    : input_(ggml_new_tensor_2d(c, GGML_TYPE_F32, nodes, 3 + nodes)), held_(ggml_scale(c, input_, 1.0f)) {
    ggml_set_input(input_);
}

void TreeInput::set(const Tree& tree, std::span<const Token> tokens) {
    const auto n = static_cast<size_t>(tree.size());
    values_.assign(n * (3 + n), 0.0f);
    for (size_t i = 0; i < n; ++i) {
        const int node = static_cast<int>(i);
        values_[i] = static_cast<float>(tokens[i]);
        values_[n + i] = static_cast<float>(std::max(tree.parent(node), 0));
        values_[2 * n + i] = static_cast<float>(tree.depth_of(node)) - static_cast<float>(i) / (2.0f * Tree::max_size);
        for (int up = node; up > 0; up = tree.parent(up)) values_[(3 + i) * n + static_cast<size_t>(up)] = 1.0f;
    }
    ggml_backend_tensor_set(input_, values_.data(), 0, values_.size() * sizeof(float));
}

ggml_tensor* TreeInput::part(ggml_context* c, int64_t first, int64_t rows) const {
    return ggml_view_2d(c, held_, nodes(), rows, held_->nb[1], static_cast<size_t>(first) * held_->nb[1]);
}

GreedyAcceptance accept_greedily(ggml_context* c, ggml_tensor* logits, const TreeInput& tree) {
    constexpr float refused = 1000.0f;  // more than the depth of any tree
    const int64_t n = logits->ne[1];
    ggml_tensor* said = ggml_reshape_2d(c, first_largest(c, logits), n, 1);
    ggml_tensor* by_parent = at_places(c, said, as_index(c, tree.parents(c), n));
    // Tokens are whole numbers.
    ggml_tensor* apart = ggml_abs(c, ggml_sub(c, by_parent, tree.tokens(c)));
    ggml_tensor* wrong = ggml_step(c, ggml_scale_bias(c, apart, 1.0f, -0.5f));
    // How many are wrong on the way to each node.
    ggml_tensor* wrongs = ggml_reshape_2d(c, ggml_sum_rows(c, ggml_mul(c, tree.paths(c), wrong)), n, 1);
    ggml_tensor* score = ggml_sub(c, tree.order(c), ggml_scale(c, wrongs, refused));
    GreedyAcceptance found{};
    found.node = as_numbers(c, ggml_argmax(c, score));
    found.index = as_index(c, found.node, n);
    found.next = ggml_reshape_1d(c, at_places(c, said, found.index), 1);
    // A sum is NaN if any number is. (Or if both infinities are among them: the host handles that, too.)
    ggml_tensor* sums = ggml_reshape_2d(c, ggml_sum_rows(c, logits), n, 1);
    ggml_tensor* is_number = ggml_step(c, ggml_scale_bias(c, ggml_abs(c, sums), 1.0f, 1.0f));
    found.number_rows = ggml_reshape_1d(c, ggml_sum_rows(c, is_number), 1);
    return found;
}

}  // namespace medusa::in_graph
