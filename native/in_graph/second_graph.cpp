#include "in_graph/second_graph.h"

#include <algorithm>

#include "in_graph/rows.h"

namespace medusa::in_graph {

DrawnLevels::DrawnLevels(const Heads& heads, ggml_backend_t backend, ggml_tensor* states)
    : heads_(heads), backend_(backend), states_(states), ranks_(std::min(proposal_width, heads.output_rows())) {
    state_ = ggml_new_tensor_2d(tensors_.context(), GGML_TYPE_F32, states->ne[0], 1);
    tensors_.allocate(heads.device(), "the state that heads read on the device", "lower {n_gpu_layers} or {ctx_size}");
}

void DrawnLevels::begin(Drafts& drafts, int node) {
    if (!first_) {
        first_ = std::make_unique<DeviceGraph>(backend_, state_tensors + 16);
        ggml_context* c = first_->context();
        node_ = first_->new_input(1, 1);
        GreedyAcceptance accepted{};
        accepted.node = ggml_view_1d(c, node_, 1, 0);
        accepted.index = as_index(c, accepted.node, Tree::max_size);
        ggml_tensor* kept = ggml_cpy(c, drafts.state(c, states_, accepted), state_);
        first_->finish(ggml_cont(c, ggml_view_1d(c, kept, 1, 0)));
    }
    const float value = static_cast<float>(node);
    DeviceGraph::set(node_, {&value, 1});
    if (drafts.prefix()) drafts.prefix()->set_inputs(GraphKind::drafts);
    first_->compute();
}

DrawnLevels::Level& DrawnLevels::level_for(Drafts& drafts, int depth, int64_t columns) {
    auto& level = levels_[{depth, columns}];
    if (level) return *level;
    level = std::make_unique<Level>(Level{DeviceGraph(backend_, drafts.most_tensors() + 16), nullptr});
    ggml_context* c = level->graph.context();
    if (heads_.metadata().reads_path()) level->tokens = level->graph.new_input(depth * columns, 1, GGML_TYPE_I32);
    ggml_tensor* probabilities = ggml_soft_max(c, drafts.level_logits(c, state_, depth, level->tokens));
    ggml_tensor* rows = largest(c, probabilities, ranks_);
    ggml_tensor* found = at_places(c, probabilities, as_index(c, rows, heads_.output_rows()));
    level->graph.finish(ggml_concat(c, rows, found, 0));  // [2 * ranks, columns]
    return *level;
}

void DrawnLevels::level(Drafts& drafts, int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    const auto length = static_cast<size_t>(depth), nodes = paths.size() / length;
    const bool reads_path = heads_.metadata().reads_path();
    Level& level = level_for(drafts, depth, reads_path ? static_cast<int64_t>(nodes) : 1);
    if (reads_path) ggml_backend_tensor_set(level.tokens, paths.data(), 0, paths.size_bytes());
    const auto found = level.graph.compute();
    const auto width = static_cast<size_t>(ranks_);
    out.ranks = std::min(ranks, ranks_);
    out.tokens.clear();
    out.q.clear();
    out.origins.clear();
    for (size_t node = 0; node < nodes; ++node) {
        const auto column = found.subspan(reads_path ? 2 * width * node : 0, 2 * width);
        for (size_t rank = 0; rank < static_cast<size_t>(out.ranks); ++rank) {
            out.tokens.push_back(heads_.token(static_cast<int>(column[rank])));
            out.q.push_back(column[width + rank]);
        }
    }
}

SecondGraph::SecondGraph(const Heads& heads) : heads_(heads), backend_(start_backend(heads.device())) {
    states_ = ggml_new_tensor_2d(tensors_.context(), GGML_TYPE_F32, heads.model().embedding_size(), Tree::max_size);
    tensors_.allocate(heads.device(), "the states of a step on the device", "lower {n_gpu_layers} or {ctx_size}");
    tensors_.clear();
}

ggml_tensor* SecondGraph::keep(ggml_context* c, ggml_tensor* states) {
    return ggml_cpy(c, states, ggml_view_2d(c, states_, states->ne[0], states->ne[1], states_->nb[1], 0));
}

SecondGraph::Graph SecondGraph::begin(size_t most_tensors) {
    Graph out{std::make_unique<DeviceGraph>(backend_.get(), most_tensors + 16), nullptr, {}};
    ggml_context* c = out.graph->context();
    out.input = out.graph->new_input(1, 2);
    const auto part = [&](size_t at) { return ggml_view_1d(c, out.input, 1, at * sizeof(float)); };
    out.accepted.node = part(0);
    out.accepted.index = as_index(c, out.accepted.node, Tree::max_size);
    out.accepted.next = part(1);
    return out;
}

std::span<const float> SecondGraph::compute(Graph& graph, int node, Token next) {
    const float values[] = {static_cast<float>(node), static_cast<float>(next)};
    DeviceGraph::set(graph.input, values);
    return graph.graph->compute();
}

std::span<const float> SecondGraph::draft(Drafts& drafts, int node, Token next) {
    if (!drafts_.graph) {
        drafts_ = begin(drafts.most_tensors());
        drafts_.graph->finish(drafts.build(drafts_.graph->context(), states_, drafts_.accepted));
    }
    if (drafts.prefix()) drafts.prefix()->set_inputs(GraphKind::drafts);
    return compute(drafts_, node, next);
}

void SecondGraph::follow(Prefix& prefix, int node) {
    if (!follows_.graph) {
        follows_ = begin(prefix_graph_tensors);
        follows_.graph->finish(prefix.follow(follows_.graph->context(), states_, follows_.accepted));
    }
    prefix.set_inputs(GraphKind::follows);
    compute(follows_, node, 0);
}

DrawnLevels& SecondGraph::drawn(Drafts& drafts, int node) {
    if (!drawn_) drawn_ = std::make_unique<DrawnLevels>(heads_, backend_.get(), states_);
    drawn_->begin(drafts, node);
    return *drawn_;
}

}  // namespace medusa::in_graph
