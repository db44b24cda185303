#include "heads/hydra_levels.h"

#include <algorithm>

namespace medusa {

ggml_tensor* hydra_logits(ggml_context* c, const Heads& heads, int head, ggml_tensor* paths) {
    const int64_t h = heads.model().embedding_size(), n = paths->ne[1];
    // SiLU(Wx + b) + (Rx + b_R): W and R in one product, R's rows below W's.
    ggml_tensor* y = linear(c, heads.first_block(head), paths);
    ggml_tensor* gate = ggml_cont(c, ggml_view_2d(c, y, h, n, y->nb[1], 0));  // CUDA's SiLU wants it in one piece
    ggml_tensor* kept = ggml_view_2d(c, y, h, n, y->nb[1], static_cast<size_t>(h) * sizeof(float));
    ggml_tensor* x = ggml_add(c, ggml_silu(c, gate), kept);
    for (int block = 1; block < heads.block_count(); ++block) x = residual_block(c, heads.block(head, block), x);
    return linear(c, heads.output(head), x);
}

size_t hydra_tensors(const Heads& heads) {
    return 16 + 4 * static_cast<size_t>(heads.block_count());
}

HydraLevels::HydraLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads,
                         std::shared_ptr<PrefixCache> cache)
    : HeadsLevels(std::move(heads), depth, std::move(threads), std::move(cache)),
      embeddings_(heads_->model(), heads_->metadata().embedding_scale) {}

// Trees of changing shape ask for many widths: beyond the smallest, graphs are shared by a few of them.
HydraLevels::Level& HydraLevels::level_for(int depth, size_t nodes) {
    constexpr size_t exact = 8, step = 8;
    const size_t width = nodes <= exact ? nodes : (nodes + step - 1) / step * step;
    auto& level = levels_[{depth, width}];
    if (!level) level = build(depth, width);
    return *level;
}

std::unique_ptr<HydraLevels::Level> HydraLevels::build(int depth, size_t nodes) {
    auto level = std::make_unique<Level>(Level{HeadsGraph(backend_.get(), 8 + hydra_tensors(*heads_)), nullptr});
    ggml_context* c = level->graph.context();
    const int64_t h = heads_->model().embedding_size();
    level->input = level->graph.new_input(h * (depth + 1), static_cast<int64_t>(nodes));
    level->graph.finish(ggml_soft_max(c, hydra_logits(c, *heads_, depth - 1, level->input)));
    return level;
}

void HydraLevels::begin_step(const DraftInput& input) {
    const auto state = state_of(input);
    hidden_.assign(state.begin(), state.end());
}

std::span<const float> HydraLevels::probabilities(int depth, std::span<const Token> paths) {
    const size_t h = hidden_.size(), length = static_cast<size_t>(depth), nodes = paths.size() / length;
    Level& level = level_for(depth, nodes);
    values_.resize(static_cast<size_t>(ggml_nelements(level.input)));
    const auto part = [&](size_t node, size_t i) {
        return std::span(values_).subspan((node * (length + 1) + i) * h, h);
    };
    for (size_t node = 0; node < nodes; ++node) {
        std::copy(hidden_.begin(), hidden_.end(), part(node, 0).begin());
        for (size_t i = 0; i < length; ++i) embeddings_.row(paths[node * length + i], part(node, i + 1));
    }
    HeadsGraph::set(level.input, values_);
    return level.graph.compute().first(nodes * static_cast<size_t>(heads_->output_rows()));
}

}  // namespace medusa
