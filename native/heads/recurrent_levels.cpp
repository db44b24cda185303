#include "heads/recurrent_levels.h"

#include <algorithm>

namespace medusa {
RecurrentLevels::RecurrentLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads)
    : HeadsLevels(std::move(heads), depth, std::move(threads)),
      embeddings_(heads_->model(), heads_->metadata().embedding_scale) {}

void RecurrentLevels::begin_step(const DraftInput& input) {
    paths_.clear();
    states_.assign(input.hidden.begin(), input.hidden.end());
}

// path: all tokens but the node's own.
std::span<const float> RecurrentLevels::parent_state(std::span<const Token> path) const {
    const auto h = static_cast<size_t>(heads_->model().embedding_size());
    if (path.empty()) return states_;
    for (size_t at = 0; at < paths_.size(); at += path.size()) {
        if (std::equal(path.begin(), path.end(), paths_.begin() + static_cast<std::ptrdiff_t>(at))) {
            return std::span(states_).subspan(at / path.size() * h, h);
        }
    }
    throw Error("recurrent heads: a level was asked for without the one above it");
}

std::span<const float> RecurrentLevels::probabilities(int depth, std::span<const Token> paths) {
    const auto h = static_cast<size_t>(heads_->model().embedding_size());
    const auto length = static_cast<size_t>(depth), nodes = paths.size() / length;
    Level& level = level_for(nodes);
    inputs_.assign(h * level.width, 0.0f);
    drawn_.assign(h * level.width, 0.0f);
    for (size_t node = 0; node < nodes; ++node) {
        const auto path = paths.subspan(node * length, length);
        const auto parent = parent_state(path.first(length - 1));
        std::copy(parent.begin(), parent.end(), inputs_.begin() + static_cast<std::ptrdiff_t>(node * h));
        embeddings_.row(path.back(), std::span(drawn_).subspan(node * h, h));
    }
    DeviceGraph::set(level.states, inputs_);
    DeviceGraph::set(level.embeddings, drawn_);
    const auto found = level.graph.compute();
    paths_.assign(paths.begin(), paths.end());
    states_.assign(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(h * nodes));
    return found.subspan(h * level.width, nodes * static_cast<size_t>(heads_->output_rows()));
}

RecurrentLevels::Level& RecurrentLevels::level_for(size_t nodes) {
    const size_t width = level_width(nodes);
    auto& level = levels_[width];
    if (!level) level = build(width);
    return *level;
}

std::unique_ptr<RecurrentLevels::Level> RecurrentLevels::build(size_t width) {
    auto level =
        std::make_unique<Level>(Level{DeviceGraph(backend_.get(), cell_tensors + 16), nullptr, nullptr, width});
    ggml_context* c = level->graph.context();
    const int64_t h = heads_->model().embedding_size(), n = static_cast<int64_t>(width);
    level->states = level->graph.new_input(h, n);
    level->embeddings = level->graph.new_input(h, n);
    ggml_tensor* states = cell_states(c, *heads_, level->states, level->embeddings);
    ggml_tensor* drafted = ggml_soft_max(c, linear(c, heads_->output(0), states));
    // One output: the states, then the probabilities.
    level->graph.finish(
        ggml_concat(c, ggml_reshape_1d(c, states, h * n), ggml_reshape_1d(c, drafted, ggml_nelements(drafted)), 0));
    return level;
}

}  // namespace medusa
