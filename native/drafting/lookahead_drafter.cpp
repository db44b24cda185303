#include "drafting/lookahead_drafter.h"

#include "decoding/sampler.h"

namespace medusa {

TreeBounds LookaheadDrafter::bounds(const LookaheadParams& params) {
    const TreeBounds window = JacobiWindow::bounds(params);
    return {window.leaves + params.guesses, 1 + window.nodes + params.guesses * (params.ngram - 1)};
}

void LookaheadDrafter::begin(std::span<const Token> prompt) {
    pool_.clear();
    for (auto rest = prompt; rest.size() >= static_cast<size_t>(params_.ngram); rest = rest.subspan(1)) {
        pool_.add(rest.first(static_cast<size_t>(params_.ngram)));
    }
    window_.start(prompt);
}

void LookaheadDrafter::draft(const DraftInput& input, Draft& out) {
    const Token root = input.context.back();
    out.set_root(root);
    drawn_ = !input.plain && bounds(params_).nodes <= input.room;
    if (!drawn_) return;
    trie_.clear(root);
    for (const std::vector<Token>& guess : pool_.after(root)) {
        int node = TokenTrie::root;
        for (const Token token : guess) node = trie_.child(node, token, 0.0f, false);
    }
    window_.draw(trie_);
    trie_.build(tree_, out);
}

void LookaheadDrafter::verified(const Verified& step) {
    if (!drawn_) return;
    std::vector<Token> answers;
    for (const int end : window_.ends()) answers.push_back(argmax(step.logits(trie_.place(end))));
    window_.move(step.draft.tokens[0], answers, found_);
    for (const std::vector<Token>& ngram : found_) pool_.add(ngram);
}

}  // namespace medusa
