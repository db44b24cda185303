#include "in_graph/step_tail.h"

namespace medusa::in_graph {
namespace {

// What comes to the host, in this order, then the drafts.
enum Found : size_t { number_rows, node, next, found_count };

}  // namespace

void StepTail::begin(const Tree& tree, std::span<const Token> tokens) {
    tree_ = tree;
    tokens_.assign(tokens.begin(), tokens.end());
    is_set_ = false;
}

ggml_tensor* StepTail::build(ggml_context* c, ggml_tensor* logits, ggml_tensor* states) {
    if (drafts_ && !states) return nullptr;
    tree_input_ = TreeInput(c, logits->ne[1]);
    const GreedyAcceptance accepted = accept_greedily(c, logits, tree_input_);
    ggml_tensor* found = ggml_concat(c, ggml_concat(c, accepted.number_rows, accepted.node, 0), accepted.next, 0);
    if (!drafts_) return found;
    ggml_tensor* state = ggml_get_rows(c, states, accepted.index);
    return ggml_concat(c, found, drafts_->build(c, state, accepted.next), 0);
}

// libllama asks once for each sequence that has outputs.
void StepTail::set_inputs() {
    if (!is_set_) tree_input_.set(tree_, tokens_);
    is_set_ = true;
}

std::optional<GreedyStep> StepTail::end(std::span<const float> found) {
    drafted_.assign(found.begin() + found_count, found.end());
    if (static_cast<int>(found[number_rows]) != tree_.size()) return std::nullopt;
    return GreedyStep{static_cast<int>(found[node]), static_cast<Token>(found[next])};
}

size_t StepTail::most_tensors() const {
    return acceptance_tensors + found_count + 2 + (drafts_ ? drafts_->most_tensors() : 0);
}

}  // namespace medusa::in_graph
