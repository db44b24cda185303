#include "in_graph/prefix.h"

#include <algorithm>

#include "heads/prefix_layer.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {

Prefix::Prefix(std::shared_ptr<const Heads> heads, int depth, int context_size)
    : heads_(std::move(heads)), rows_(depth + 1) {
    constexpr int64_t step = 256;  // of libllama's contexts
    capacity_ = (context_size + rows_ + step - 1) / step * step;
    context_.reset(ggml_init({2 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    keys_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, prefix_cell_width(*heads_), capacity_);
    values_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, prefix_cell_width(*heads_), capacity_);
    buffer_.reset(
        ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(heads_->device())));
    if (!buffer_) throw OutOfMemory("no memory for the cache of the heads' prefix layer on the device");
    ggml_backend_buffer_clear(buffer_.get(), 0);  // masked cells count nothing, unless they happen to hold NaN
}

ggml_tensor* Prefix::build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) {
    constexpr float masked = -65504.0f;  // F16's lowest
    const int64_t n = states->ne[1];
    input_ = ggml_new_tensor_2d(c, GGML_TYPE_F32, rows_ + 3, n);
    ggml_set_input(input_);
    ggml_tensor* known = ggml_get_rows(c, input_, accepted.index);
    const auto part = [&](int64_t first, int64_t count) {
        return ggml_view_1d(c, known, count, static_cast<size_t>(first) * sizeof(float));
    };
    ggml_tensor *root_cell = part(rows_ + 1, 1), *last_cell = part(rows_ + 2, 1);
    ggml_tensor* cells = ggml_add(c, ggml_arange(c, 0.0f, static_cast<float>(rows_), 1.0f), root_cell);
    ggml_tensor* beyond = ggml_sub(c, ggml_arange(c, 0.0f, static_cast<float>(capacity_), 1.0f), last_cell);
    ggml_tensor* mask = ggml_scale(c, ggml_step(c, ggml_scale_bias(c, beyond, 1.0f, -0.5f)), masked);
    PrefixInputs in{};
    in.states = ggml_get_rows(c, states, as_index(c, part(0, rows_), n));
    in.last_row = as_index(c, part(rows_, 1), rows_);
    in.positions = in.cells = as_index(c, cells, capacity_);
    in.last_position = as_index(c, last_cell, capacity_);
    in.mask = ggml_cast(c, mask, GGML_TYPE_F16);
    in.keys = keys_, in.values = values_;
    return prefix_output(c, *heads_, in);
}

void Prefix::begin(const Tree& tree, int position) {
    if (position < start_ || position > start_ + count_) {
        start_ = position;
        count_ = 0;
    }
    count_ = position - start_;
    const auto rows = static_cast<size_t>(rows_), stride = rows + 3;
    numbers_.assign(stride * static_cast<size_t>(tree.size()), 0.0f);
    for (int node = 0; node < tree.size(); ++node) {
        float* numbers = &numbers_[stride * static_cast<size_t>(node)];
        const std::vector<int> path = tree.path(node);
        for (size_t i = 0; i < rows; ++i) numbers[i] = static_cast<float>(path[std::min(i, path.size() - 1)]);
        numbers[rows] = static_cast<float>(tree.depth_of(node));
        numbers[rows + 1] = static_cast<float>(count_);
        numbers[rows + 2] = static_cast<float>(count_ + tree.depth_of(node));
    }
}

void Prefix::set_inputs() {
    ggml_backend_tensor_set(input_, numbers_.data(), 0, numbers_.size() * sizeof(float));
}

void Prefix::end(int accepted) {
    count_ += accepted;
    if (accepted == 0) count_ = 0, start_ = 0;
}

void Prefix::rolled_back(int position) {
    count_ = std::clamp(position - start_, 0, count_);
}

}  // namespace medusa::in_graph
