#include "heads/medusa_levels.h"

namespace medusa {
namespace {

// The last state of each head, [h]; one [h, depth] of all where they come together anyway.
std::vector<ggml_tensor*> last_states(ggml_context* c, const Heads& heads, ggml_tensor* state, int depth) {
    if (heads.block_count() == 0) return std::vector<ggml_tensor*>(static_cast<size_t>(depth), state);
    const int64_t h = state->ne[0];
    // One input for all heads: the stacked weights are one matrix of h rows per head.
    Linear first = heads.first_blocks();
    first.weight = ggml_view_2d(c, first.weight, h, h * depth, first.weight->nb[1], 0);
    if (first.bias) first.bias = ggml_view_1d(c, first.bias, h * depth, 0);
    ggml_tensor* y = ggml_silu(c, linear(c, first, state));
    ggml_tensor* all = ggml_add(c, ggml_reshape_2d(c, y, h, depth), state);
    std::vector<ggml_tensor*> out;
    for (int head = 0; head < depth; ++head) {
        ggml_tensor* x = ggml_view_2d(c, all, h, 1, all->nb[1], static_cast<size_t>(head) * all->nb[1]);
        for (int block = 1; block < heads.block_count(); ++block) {
            x = residual_block(c, heads.block(head, block), x);
        }
        out.push_back(x);
    }
    if (heads.block_count() == 1 && !heads.has_own_outputs()) return {all};
    return out;
}

}  // namespace

ggml_tensor* medusa_logits(ggml_context* c, const Heads& heads, ggml_tensor* state, int depth) {
    const std::vector<ggml_tensor*> x = last_states(c, heads, state, depth);
    const auto joined = [&](const std::vector<ggml_tensor*>& parts) {
        ggml_tensor* all = parts.front();
        for (size_t i = 1; i < parts.size(); ++i) all = ggml_concat(c, all, parts[i], 1);
        return all;
    };
    if (!heads.has_own_outputs()) return linear(c, heads.output(0), joined(x));
    std::vector<ggml_tensor*> parts;
    for (int head = 0; head < depth; ++head) {
        parts.push_back(linear(c, heads.output(head), x[static_cast<size_t>(head)]));
    }
    return joined(parts);
}

size_t medusa_tensors(const Heads& heads, int depth) {
    return 16 + static_cast<size_t>(depth) * (8 + 4 * static_cast<size_t>(heads.block_count()));
}

MedusaLevels::MedusaLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads,
                           std::shared_ptr<PrefixCache> cache)
    : HeadsLevels(std::move(heads), depth, std::move(threads), std::move(cache)),
      graph_(backend_.get(), medusa_tensors(*heads_, depth)),
      input_(graph_.new_input(heads_->model().embedding_size(), 1)) {
    graph_.finish(ggml_soft_max(graph_.context(), medusa_logits(graph_.context(), *heads_, input_, depth)));
}

void MedusaLevels::begin_step(const DraftInput& input) {
    HeadsGraph::set(input_, state_of(input));
    output_ = graph_.compute();
}

std::span<const float> MedusaLevels::probabilities(int depth, std::span<const Token>) {
    const auto width = static_cast<size_t>(heads_->output_rows());
    return output_.subspan(static_cast<size_t>(depth - 1) * width, width);
}

}  // namespace medusa
