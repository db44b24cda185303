#include "in_graph/step_tail.h"

#include <algorithm>

namespace medusa::in_graph {
namespace {

// What comes to the host of a greedy step, in this order, then the drafts.
enum Found : size_t { number_rows, node, next, found_count };

}  // namespace

void StepTail::take_way(StepWay way) {
    way_ = way;
    second_.reset();
    if (way == StepWay::ranked && drafts_) second_ = std::make_unique<SecondGraph>(*heads_);
}

void StepTail::begin(const Tree& tree, std::span<const Token> tokens, int position) {
    tree_ = tree;
    tokens_.assign(tokens.begin(), tokens.end());
    is_set_ = false;
    if (drafts_) drafts_->begin(tree, position);
}

ggml_tensor* StepTail::build(ggml_context* c, ggml_cgraph* graph, ggml_tensor* logits, ggml_tensor* states) {
    if (drafts_ && !states) return nullptr;
    if (way_ == StepWay::greedy) return build_greedy(c, logits, states);
    if (second_) ggml_build_forward_expand(graph, second_->keep(c, states));
    return RankedRows::build(c, logits);
}

ggml_tensor* StepTail::build_greedy(ggml_context* c, ggml_tensor* logits, ggml_tensor* states) {
    tree_input_ = TreeInput(c, logits->ne[1]);
    const GreedyAcceptance accepted = accept_greedily(c, logits, tree_input_);
    ggml_tensor* found = ggml_concat(c, ggml_concat(c, accepted.number_rows, accepted.node, 0), accepted.next, 0);
    if (!drafts_) return found;
    return ggml_concat(c, found, drafts_->build(c, states, accepted), 0);
}

// libllama asks once for each sequence that has outputs.
void StepTail::set_inputs() {
    if (is_set_ || way_ != StepWay::greedy) return;
    is_set_ = true;
    tree_input_.set(tree_, tokens_);
    if (drafts_) drafts_->set_inputs();
}

std::optional<GreedyStep> StepTail::end(std::span<const float> found) {
    if (way_ == StepWay::ranked) {
        rows_.read(found, tree_.size());
        return std::nullopt;
    }
    drafted_.assign(found.begin() + found_count, found.end());
    std::optional<GreedyStep> step;
    if (static_cast<int>(found[number_rows]) == tree_.size()) {
        step = GreedyStep{static_cast<int>(found[node]), static_cast<Token>(found[next])};
    }
    if (drafts_) drafts_->end(step ? tree_.depth_of(step->node) + 1 : 0);
    return step;
}

void StepTail::draft(int node, Token next) {
    if (way_ != StepWay::ranked) return;
    const auto drafted = second_->draft(*drafts_, node, next);
    drafted_.assign(drafted.begin(), drafted.end());
    drafts_->end(tree_.depth_of(node) + 1);
}

void StepTail::rolled_back(int position) {
    if (drafts_) drafts_->rolled_back(position);
}

size_t StepTail::most_tensors() const {
    const size_t greedy = acceptance_tensors + found_count + 2 + (drafts_ ? drafts_->most_tensors() : 0);
    return std::max(greedy, ranked_tensors + SecondGraph::kept_tensors);
}

}  // namespace medusa::in_graph
