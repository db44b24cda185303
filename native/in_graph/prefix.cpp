#include "in_graph/prefix.h"

#include <algorithm>

#include "in_graph/rows.h"

namespace medusa::in_graph {
namespace {

// Something that exists once both are written.
ggml_tensor* some_of(ggml_context* c, const PrefixCells& written) {
    const auto first = [&](ggml_tensor* cells) { return ggml_cast(c, ggml_view_1d(c, cells, 1, 0), GGML_TYPE_F32); };
    return ggml_concat(c, first(written.keys), first(written.values), 0);
}

}  // namespace

Prefix::Prefix(std::shared_ptr<const Heads> heads, int depth, int context_size)
    : heads_(std::move(heads)),
      rows_(depth + 1),
      cache_(std::make_shared<PrefixCache>(*heads_, context_size + depth + 1)) {}

// The inputs for `kind`, without what only the layer's output needs.
PrefixInputs Prefix::inputs(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted, GraphKind kind) {
    const int64_t n = states->ne[1];
    ggml_tensor*& input = input_[static_cast<size_t>(kind)];
    input = ggml_new_tensor_2d(c, GGML_TYPE_F32, rows_ + 3, n);
    ggml_set_input(input);
    ggml_tensor* known = ggml_get_rows(c, input, accepted.index);
    const auto part = [&](int64_t first, int64_t count) {
        return ggml_view_1d(c, known, count, static_cast<size_t>(first) * sizeof(float));
    };
    ggml_tensor *root_cell = part(rows_ + 1, 1), *last_cell = part(rows_ + 2, 1);
    ggml_tensor* cells = ggml_add(c, ggml_arange(c, 0.0f, static_cast<float>(rows_), 1.0f), root_cell);
    PrefixInputs in{};
    in.states = ggml_get_rows(c, states, as_index(c, part(0, rows_), n));
    in.positions = in.cells = as_index(c, cells, cache_->capacity());
    in.keys = cache_->keys(), in.values = cache_->values();
    if (kind == GraphKind::follows) return in;
    constexpr float masked = -65504.0f;  // F16's lowest
    ggml_tensor* beyond = ggml_sub(c, ggml_arange(c, 0.0f, static_cast<float>(cache_->capacity()), 1.0f), last_cell);
    ggml_tensor* mask = ggml_scale(c, ggml_step(c, ggml_scale_bias(c, beyond, 1.0f, -0.5f)), masked);
    in.last_row = as_index(c, part(rows_, 1), rows_);
    in.last_position = as_index(c, last_cell, cache_->capacity());
    in.mask = ggml_cast(c, mask, GGML_TYPE_F16);
    return in;
}

ggml_tensor* Prefix::build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) {
    return prefix_output(c, *heads_, inputs(c, states, accepted, GraphKind::drafts));
}

ggml_tensor* Prefix::follow(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) {
    return some_of(c, prefix_cells(c, *heads_, inputs(c, states, accepted, GraphKind::follows)));
}

ggml_tensor* Prefix::read(ggml_context* c, ggml_tensor* states) {
    ggml_tensor*& first = input_[static_cast<size_t>(GraphKind::prompt)];
    first = ggml_new_tensor_1d(c, GGML_TYPE_F32, 1);
    ggml_set_input(first);
    ggml_tensor* cells = ggml_add(c, ggml_arange(c, 0.0f, static_cast<float>(states->ne[1]), 1.0f), first);
    PrefixInputs in{};
    in.states = states;
    in.positions = in.cells = as_index(c, cells, cache_->capacity());
    in.keys = cache_->keys(), in.values = cache_->values();
    return some_of(c, prefix_cells(c, *heads_, in));
}

void Prefix::begin(const Tree& tree, int position) {
    cache_->expect(position);
    const auto rows = static_cast<size_t>(rows_), stride = rows + 3;
    numbers_.assign(stride * static_cast<size_t>(tree.size()), 0.0f);
    for (int node = 0; node < tree.size(); ++node) {
        float* numbers = &numbers_[stride * static_cast<size_t>(node)];
        const std::vector<int> path = tree.path(node);
        for (size_t i = 0; i < rows; ++i) numbers[i] = static_cast<float>(path[std::min(i, path.size() - 1)]);
        numbers[rows] = static_cast<float>(tree.depth_of(node));
        numbers[rows + 1] = static_cast<float>(cache_->count);
        numbers[rows + 2] = static_cast<float>(cache_->count + tree.depth_of(node));
    }
}

void Prefix::begin_prompt(int position) {
    cache_->expect(position);
    numbers_.assign(1, static_cast<float>(cache_->count));
}

void Prefix::set_inputs(GraphKind kind) {
    ggml_tensor* input = input_[static_cast<size_t>(kind)];
    ggml_backend_tensor_set(input, numbers_.data(), 0, numbers_.size() * sizeof(float));
}

void Prefix::end(int accepted) {
    cache_->count += accepted;
    if (accepted == 0) cache_->count = 0, cache_->start = 0;
}

}  // namespace medusa::in_graph
