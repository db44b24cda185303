#include "in_graph/second_graph.h"

#include "in_graph/rows.h"

namespace medusa::in_graph {

SecondGraph::SecondGraph(const Heads& heads) : backend_(start_backend(heads)) {
    context_.reset(ggml_init({ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    states_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, heads.model().embedding_size(), Tree::max_size);
    buffer_.reset(
        ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(heads.device())));
    if (!buffer_) throw OutOfMemory("no memory for the states of a step on the device: lower -ngl or --ctx-size");
    ggml_backend_buffer_clear(buffer_.get(), 0);
}

ggml_tensor* SecondGraph::keep(ggml_context* c, ggml_tensor* states) {
    return ggml_cpy(c, states, ggml_view_2d(c, states_, states->ne[0], states->ne[1], states_->nb[1], 0));
}

void SecondGraph::build(Drafts& drafts) {
    graph_ = std::make_unique<HeadsGraph>(backend_.get(), drafts.most_tensors() + 16);
    ggml_context* c = graph_->context();
    input_ = graph_->new_input(1, 2);
    GreedyAcceptance accepted{};
    const auto part = [&](size_t at) { return ggml_view_1d(c, input_, 1, at * sizeof(float)); };
    accepted.node = part(0);
    accepted.index = as_index(c, accepted.node, Tree::max_size);
    accepted.next = part(1);
    graph_->finish(drafts.build(c, states_, accepted));
}

std::span<const float> SecondGraph::draft(Drafts& drafts, int node, Token next) {
    if (!graph_) build(drafts);
    const float values[] = {static_cast<float>(node), static_cast<float>(next)};
    HeadsGraph::set(input_, values);
    drafts.set_inputs();
    return graph_->compute();
}

}  // namespace medusa::in_graph
