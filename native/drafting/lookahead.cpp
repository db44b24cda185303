#include "drafting/lookahead.h"

#include <algorithm>
#include <numeric>

#include "decoding/sampler.h"

namespace medusa {

void TokenTrie::clear(Token root_token) {
    nodes_.assign(1, {root_token, 1.0f, -1, 0, false});
    places_.assign(1, 0);
}

int TokenTrie::child(int parent, Token token, float q, bool hidden) {
    const auto same = std::find_if(nodes_.begin(), nodes_.end(),
                                   [&](const Node& node) { return node.parent == parent && node.token == token; });
    if (same != nodes_.end()) {
        same->hidden = same->hidden && hidden;
        return static_cast<int>(same - nodes_.begin());
    }
    nodes_.push_back({token, q, parent, nodes_[parent].depth + 1, hidden});
    return size() - 1;
}

void TokenTrie::build(Tree& tree, Draft& out) {
    std::vector<int> order(nodes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return nodes_[a].depth < nodes_[b].depth; });
    places_.resize(nodes_.size());
    for (int at = 0; at < size(); ++at) places_[order[at]] = at;
    std::vector<int> parents;
    std::vector<bool> hidden;
    out.tokens.clear();
    out.q.clear();
    out.drawn.clear();
    for (const int i : order) {
        const Node& node = nodes_[i];
        parents.push_back(node.parent < 0 ? -1 : places_[node.parent]);
        hidden.push_back(node.hidden);
        out.tokens.push_back(node.token);
        out.q.push_back(node.q);
        out.drawn.push_back(false);
    }
    tree = Tree::from_parents(parents);
    tree.hide(hidden);
    out.tree = &tree;
}

void NgramPool::add(std::span<const Token> ngram) {
    auto& known = by_first_[ngram.front()];
    std::vector<Token> rest(ngram.begin() + 1, ngram.end());
    std::erase(known, rest);
    if (static_cast<int>(known.size()) == most_) known.erase(known.begin());
    known.push_back(std::move(rest));
}

std::span<const std::vector<Token>> NgramPool::after(Token token) const {
    const auto found = by_first_.find(token);
    return found == by_first_.end() ? std::span<const std::vector<Token>>() : found->second;
}

void JacobiWindow::start(std::span<const Token> text) {
    // One more column for each row still to come: each of these steps moves the window on by a column.
    rows_.assign(1, {});
    for (int i = 0; i < params_.window + params_.ngram - 3; ++i) {
        const auto at = static_cast<size_t>(uniform(0, static_cast<uint64_t>(i)) * static_cast<double>(text.size()));
        rows_[0].push_back(text[at]);
    }
}

void JacobiWindow::draw(TokenTrie& trie) {
    ends_.assign(1, TokenTrie::root);
    for (const Token token : rows_[0]) ends_.push_back(trie.child(ends_.back(), token, 0.0f, true));
    for (size_t row = 1; row < rows_.size(); ++row) {
        for (size_t column = 0; column < ends_.size(); ++column) {
            ends_[column] = trie.child(ends_[column], rows_[row][column], 0.0f, true);
        }
    }
}

void JacobiWindow::move(Token root, std::span<const Token> answers, std::vector<std::vector<Token>>& found) {
    found.clear();
    std::vector<Token> answered(answers.begin(), answers.end());
    if (is_full()) {
        for (size_t column = 0; column < answered.size(); ++column) {
            auto& ngram = found.emplace_back(1, column == 0 ? root : rows_[0][column - 1]);
            for (size_t row = 1; row < rows_.size(); ++row) ngram.push_back(rows_[row][column]);
            ngram.push_back(answered[column]);
        }
        // Each row becomes the one before it; its columns begin one position earlier.
        rows_.push_back(std::move(answered));
        rows_.erase(rows_.begin());
        rows_[0].erase(rows_[0].begin());
    } else {
        // Another row replaces the first column.
        rows_.push_back(std::move(answered));
        for (auto& row : rows_) row.erase(row.begin());
    }
}

TreeBounds JacobiWindow::bounds(const LookaheadParams& params) {
    TreeBounds bounds{0, 0};
    for (int rows = 1; rows < params.ngram; ++rows) {
        const int columns = params.window + params.ngram - 1 - rows;
        bounds.nodes = std::max(bounds.nodes, columns * rows - 1);
        bounds.leaves = std::max(bounds.leaves, rows == 1 ? 1 : columns);
    }
    return bounds;
}

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
