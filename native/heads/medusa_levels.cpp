#include "heads/medusa_levels.h"

namespace medusa {

MedusaLevels::MedusaLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads)
    : HeadsLevels(std::move(heads), depth, std::move(threads)),
      graph_(backend_.get(), 16 + static_cast<size_t>(depth) * (8 + 4 * static_cast<size_t>(heads_->block_count()))),
      input_(graph_.new_input(heads_->model().embedding_size(), 1)) {
    graph_.finish(ggml_soft_max(graph_.context(), logits(blocks())));
}

// The last state of each head, [h].
std::vector<ggml_tensor*> MedusaLevels::blocks() {
    if (heads_->block_count() == 0) return std::vector<ggml_tensor*>(static_cast<size_t>(depth_), input_);
    ggml_context* c = graph_.context();
    const int64_t h = input_->ne[0];
    // One input for all heads: the stacked weights are one matrix of h rows per head.
    Linear first = heads_->first_blocks();
    first.weight = ggml_view_2d(c, first.weight, h, h * depth_, first.weight->nb[1], 0);
    if (first.bias) first.bias = ggml_view_1d(c, first.bias, h * depth_, 0);
    ggml_tensor* y = ggml_silu(c, linear(c, first, input_));
    ggml_tensor* all = ggml_add(c, ggml_reshape_2d(c, y, h, depth_), input_);
    std::vector<ggml_tensor*> out;
    for (int head = 0; head < depth_; ++head) {
        ggml_tensor* x = ggml_view_2d(c, all, h, 1, all->nb[1], static_cast<size_t>(head) * all->nb[1]);
        for (int block = 1; block < heads_->block_count(); ++block) {
            x = residual_block(c, heads_->block(head, block), x);
        }
        out.push_back(x);
    }
    if (heads_->block_count() == 1 && !heads_->has_own_outputs()) return {all};
    return out;
}

// [rows, depth]
ggml_tensor* MedusaLevels::logits(const std::vector<ggml_tensor*>& x) {
    ggml_context* c = graph_.context();
    const auto joined = [&](const std::vector<ggml_tensor*>& parts) {
        ggml_tensor* all = parts.front();
        for (size_t i = 1; i < parts.size(); ++i) all = ggml_concat(c, all, parts[i], 1);
        return all;
    };
    if (!heads_->has_own_outputs()) return linear(c, heads_->output(0), joined(x));
    std::vector<ggml_tensor*> parts;
    for (int head = 0; head < depth_; ++head) {
        parts.push_back(linear(c, heads_->output(head), x[static_cast<size_t>(head)]));
    }
    return joined(parts);
}

void MedusaLevels::begin_step(const DraftInput& input) {
    HeadsGraph::set(input_, input.hidden);
    output_ = graph_.compute();
}

std::span<const float> MedusaLevels::probabilities(int depth, std::span<const Token>) {
    const auto width = static_cast<size_t>(heads_->output_rows());
    return output_.subspan(static_cast<size_t>(depth - 1) * width, width);
}

}  // namespace medusa
