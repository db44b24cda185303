#include "medusa_levels.h"

#include <algorithm>

namespace medusa {

MedusaLevels::MedusaLevels(std::shared_ptr<Heads> heads, int head_count, int threads)
    : heads_(std::move(heads)), head_count_(head_count) {
    backend_.reset(ggml_backend_dev_init(heads_->device(), nullptr));
    if (!backend_) throw Error(std::string("cannot start the device ") + ggml_backend_dev_name(heads_->device()));
    const auto registry = ggml_backend_dev_backend_reg(heads_->device());
    if (const auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"))) {
        set_threads(backend_.get(), threads);
    }
    build();
}

// x + SiLU(Wx + b) for all heads at once; x is [h] before the first block, [h, heads] afterwards.
ggml_tensor* MedusaLevels::residual_block(int block, ggml_tensor* x) {
    ggml_context* c = context_.get();
    ggml_tensor* weight = heads_->block_weight(block);
    const int64_t h = weight->ne[0], k = head_count_;
    ggml_tensor* y;
    if (block == 0) {
        // One input for all heads: the stacked weights are one matrix of h * heads rows.
        y = ggml_mul_mat(c, ggml_view_2d(c, weight, h, h * k, weight->nb[1], 0), x);
    } else {
        ggml_tensor* per_head = ggml_view_3d(c, weight, h, h, k, weight->nb[1], weight->nb[2], 0);
        y = ggml_mul_mat(c, per_head, ggml_reshape_3d(c, x, h, 1, k));
    }
    y = ggml_reshape_2d(c, y, h, k);
    if (ggml_tensor* bias = heads_->block_bias(block)) {
        y = ggml_add(c, y, ggml_view_2d(c, bias, h, k, bias->nb[1], 0));
    }
    return ggml_add(c, ggml_silu(c, y), x);
}

void MedusaLevels::build() {
    const size_t nodes = 16 + 8 * static_cast<size_t>(heads_->block_count());
    context_.reset(ggml_init({nodes * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, /*no_alloc=*/true}));
    ggml_context* c = context_.get();
    ggml_tensor* output = heads_->output();
    const int64_t h = output->ne[0], rows = heads_->output_rows(), k = head_count_;

    input_ = ggml_new_tensor_2d(c, GGML_TYPE_F32, h, 1);
    ggml_set_input(input_);
    ggml_tensor* x = input_;
    for (int block = 0; block < heads_->block_count(); ++block) x = residual_block(block, x);
    if (heads_->block_count() == 0) x = ggml_repeat_4d(c, x, h, k, 1, 1);

    ggml_tensor* logits;
    if (heads_->output_per_head()) {
        ggml_tensor* per_head = ggml_view_3d(c, output, h, rows, k, output->nb[1], output->nb[2], 0);
        logits = ggml_reshape_2d(c, ggml_mul_mat(c, per_head, ggml_reshape_3d(c, x, h, 1, k)), rows, k);
        if (ggml_tensor* bias = heads_->output_bias()) {
            logits = ggml_add(c, logits, ggml_view_2d(c, bias, rows, k, bias->nb[1], 0));
        }
    } else {
        logits = ggml_mul_mat(c, output, x);
    }
    probabilities_ = ggml_soft_max(c, logits);
    ggml_set_output(probabilities_);
    graph_ = ggml_new_graph(c);
    ggml_build_forward_expand(graph_, probabilities_);
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        if (!ggml_backend_supports_op(backend_.get(), ggml_graph_node(graph_, i))) {
            throw Error(std::string("the heads' tensor types are not supported by ") +
                        ggml_backend_name(backend_.get()) + ": convert them to f16 or q8_0");
        }
    }
    allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
    if (!ggml_gallocr_alloc_graph(allocator_.get(), graph_)) throw Error("no memory to evaluate the heads");
    output_.resize(static_cast<size_t>(rows * k));
}

std::span<const float> MedusaLevels::evaluate(std::span<const float> hidden) {
    ggml_backend_tensor_set(input_, hidden.data(), 0, hidden.size_bytes());
    if (ggml_backend_graph_compute(backend_.get(), graph_) != GGML_STATUS_SUCCESS) {
        throw Error("evaluating the heads failed: run with --no-spec");
    }
    ggml_backend_tensor_get(probabilities_, output_.data(), 0, output_.size() * sizeof(float));
    return output_;
}

void MedusaLevels::top(int head, int ranks, std::vector<int>& rows) const {
    const size_t width = static_cast<size_t>(heads_->output_rows());
    const std::span<const float> p(output_.data() + head * width, width);
    top_indices(p, ranks, rows);
    // Heads full of NaN rank nothing: any distinct rows will do, they are verified like all others.
    for (int row = 0; rows.size() < static_cast<size_t>(ranks); ++row) {
        if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    }
}

// The same candidates below every node.
void MedusaLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    const int head = depth - 1;
    top(head, ranks, ranked_);
    out.ranks = ranks;
    out.tokens.clear();
    out.q.clear();
    for (size_t node = 0; node < paths.size() / static_cast<size_t>(depth); ++node) {
        for (const int row : ranked_) {
            out.tokens.push_back(heads_->token(row));
            out.q.push_back(output_[static_cast<size_t>(head) * heads_->output_rows() + row]);
        }
    }
}

}  // namespace medusa
