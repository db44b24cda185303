#include "drafting/lookahead.h"

#include <algorithm>

#include "decoding/sampler.h"

namespace medusa {

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
    // One column more for each row that is still to come: each of these steps moves the window on by a column.
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
        // Each row becomes the one before it, whose columns begin a position earlier.
        rows_.push_back(std::move(answered));
        rows_.erase(rows_.begin());
        rows_[0].erase(rows_[0].begin());
    } else {
        // Another row in place of the first column.
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

}  // namespace medusa
