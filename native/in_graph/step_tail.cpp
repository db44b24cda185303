#include "in_graph/step_tail.h"

#include <algorithm>

namespace medusa::in_graph {
namespace {

// What a greedy step brings to the host, in this order; then the likeliest tokens, then the drafts.
enum Found : size_t { number_rows, node, next };

// Logits that nobody asks for are not computed if they follow from the states step by step.
void leave_out(ggml_tensor* logits, const ggml_tensor* states) {
    const auto from = [](const ggml_tensor* t) { return t->src[t->op == GGML_OP_MUL_MAT ? 1 : 0]; };
    const ggml_tensor* origin = logits;
    while (origin && origin != states) origin = from(origin);
    for (ggml_tensor* t = logits; origin && t != states; t = from(t)) t->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
}

}  // namespace

void StepTail::take_way(StepWay way) {
    settle();
    way_ = way;
    second_.reset();
    if (way == StepWay::ranked && drafts_) second_ = std::make_unique<SecondGraph>(*heads_);
}

void StepTail::begin(const Tree& tree, std::span<const Token> tokens, int position) {
    settle();
    kind_ = rests_ && way_ == StepWay::greedy ? GraphKind::follows : GraphKind::drafts;
    rests_ = false;
    tree_ = tree;
    tokens_.assign(tokens.begin(), tokens.end());
    is_set_ = false;
    drafted_.clear();
    if (prefix()) prefix()->begin(tree, position);
}

void StepTail::begin_prompt(int count, int position) {
    settle();
    kind_ = GraphKind::prompt;
    prompt_count_ = count;
    is_set_ = false;
    prefix()->begin_prompt(position);
}

int64_t StepTail::numbers_of_row(int64_t vocabulary) const {
    if (way_ == StepWay::ranked) return RankedRows::numbers(vocabulary);
    return names_likeliest_ ? LikeliestRows::numbers(vocabulary) : 0;
}

ggml_tensor* StepTail::build(ggml_context* c, ggml_cgraph* graph, ggml_tensor* logits, ggml_tensor* states) {
    if (drafts_ && !states) return nullptr;
    if (kind_ == GraphKind::prompt) {
        leave_out(logits, states);
        return prefix()->read(c, states);
    }
    if (way_ == StepWay::greedy) return build_greedy(c, graph, logits, states);
    if (second_) ggml_build_forward_expand(graph, second_->keep(c, states));
    return RankedRows::build(c, logits);
}

ggml_tensor* StepTail::build_greedy(ggml_context* c, ggml_cgraph* graph, ggml_tensor* logits, ggml_tensor* states) {
    tree_input_ = TreeInput(c, logits->ne[1]);
    const GreedyAcceptance accepted = accept_greedily(c, logits, tree_input_);
    ggml_tensor* found = ggml_concat(c, ggml_concat(c, accepted.number_rows, accepted.node, 0), accepted.next, 0);
    if (names_likeliest_) found = ggml_concat(c, found, likeliest_.build(c, logits), 0);
    if (!drafts_) return found;
    if (kind_ == GraphKind::drafts) return ggml_concat(c, found, drafts_->build(c, states, accepted), 0);
    if (prefix()) ggml_build_forward_expand(graph, prefix()->follow(c, states, accepted));
    return found;
}

// libllama asks once for each sequence that has outputs.
void StepTail::set_inputs() {
    if (is_set_) return;
    is_set_ = true;
    const bool in_prompt = kind_ == GraphKind::prompt;
    if (way_ != StepWay::greedy && !in_prompt) return;
    if (!in_prompt) tree_input_.set(tree_, tokens_);
    if (prefix()) prefix()->set_inputs(kind_);
}

std::optional<GreedyStep> StepTail::end(std::span<const float> found) {
    if (way_ == StepWay::ranked) {
        ranked_.read(found, tree_.size());
        return std::nullopt;
    }
    const size_t rows = names_likeliest_ ? likeliest_.read(found.subspan(greedy_numbers), tree_.size()) : 0;
    drafted_.assign(found.begin() + static_cast<std::ptrdiff_t>(greedy_numbers + rows), found.end());
    std::optional<GreedyStep> step;
    if (static_cast<int>(found[number_rows]) == tree_.size()) {
        step = GreedyStep{static_cast<int>(found[node]), static_cast<Token>(found[next])};
    } else {
        likeliest_.clear();
    }
    if (prefix()) prefix()->end(step ? tree_.depth_of(step->node) + 1 : 0);
    return step;
}

void StepTail::accepted(int node) {
    if (way_ == StepWay::ranked && prefix()) unsettled_ = node;
}

// Tells the prefix layer of an accepted node after which nothing was drafted.
void StepTail::settle() {
    if (!unsettled_) return;
    const int node = *unsettled_;
    unsettled_.reset();
    second_->follow(*prefix(), node);
    prefix()->end(tree_.depth_of(node) + 1);
}

void StepTail::draft(int node, Token next) {
    if (way_ != StepWay::ranked) return;
    unsettled_.reset();
    const auto drafted = second_->draft(*drafts_, node, next);
    drafted_.assign(drafted.begin(), drafted.end());
    if (prefix()) prefix()->end(tree_.depth_of(node) + 1);
}

void StepTail::begin_drawing(int node) {
    unsettled_.reset();
    drawn_ = &second_->drawn(*drafts_, node);
    if (prefix()) prefix()->end(tree_.depth_of(node) + 1);
}

void StepTail::rolled_back(int position) {
    if (!prefix()) return;
    try {
        settle();
    } catch (const Error&) {  // the next decode will report that the device fails
        prefix()->end(0);
    }
    prefix()->rolled_back(position);
}

std::span<const RankedToken> StepTail::ranked(int row) {
    if (way_ != StepWay::ranked) return {};
    return ranked_.row(row);
}

Likeliest StepTail::likeliest(int row) {
    if (way_ == StepWay::greedy) return names_likeliest_ ? likeliest_.row(row) : Likeliest();
    Likeliest out;
    const auto tokens = ranked_.row(row);
    for (const RankedToken& one : tokens) out.tokens.push_back(one.token);
    if (tokens.size() > 1) out.lead = tokens[0].logit - tokens[1].logit;
    return out;
}

size_t StepTail::most_tensors() const {
    const size_t drafts = drafts_ ? drafts_->most_tensors() + prefix_graph_tensors : 0;
    const size_t greedy = acceptance_tensors + likeliest_tensors + greedy_numbers + 4 + drafts;
    return std::max(greedy, ranked_tensors + SecondGraph::kept_tensors);
}

}  // namespace medusa::in_graph
