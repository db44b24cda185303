#include "in_graph/second_graph.h"

#include "in_graph/rows.h"

namespace medusa::in_graph {

SecondGraph::SecondGraph(const Heads& heads) : heads_(heads), backend_(start_backend(heads)) {
    context_.reset(ggml_init({ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    states_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, heads.model().embedding_size(), Tree::max_size);
    buffer_.reset(
        ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(heads.device())));
    if (!buffer_)
        throw OutOfMemory("no memory for the states of a step on the device", "lower {n_gpu_layers} or {ctx_size}");
    ggml_backend_buffer_clear(buffer_.get(), 0);
}

ggml_tensor* SecondGraph::keep(ggml_context* c, ggml_tensor* states) {
    return ggml_cpy(c, states, ggml_view_2d(c, states_, states->ne[0], states->ne[1], states_->nb[1], 0));
}

SecondGraph::Graph SecondGraph::begin(size_t most_tensors) {
    Graph out{std::make_unique<HeadsGraph>(backend_.get(), most_tensors + 16), nullptr, {}};
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
    HeadsGraph::set(graph.input, values);
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
