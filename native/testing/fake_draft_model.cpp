#include "testing/fake_draft_model.h"

#include <stdexcept>

namespace medusa::testing {

// For the newest token of a sequence, which must hold `length` tokens.
void FakeDraftModel::add_row(int sequence, int length) {
    const std::vector<Token> path = cells_.sequence(sequence);
    if (static_cast<int>(path.size()) != length) throw std::logic_error("a branch of another length than its level");
    const std::vector<Token> order = guesses_.after(path);
    std::vector<float>& row = rows_.emplace_back(static_cast<size_t>(vocab_size_));
    for (size_t rank = 0; rank < order.size(); ++rank)
        row[static_cast<size_t>(order[rank])] = -static_cast<float>(rank);
}

void FakeDraftModel::append(std::span<const Token> tokens) {
    if (tokens.empty()) throw std::logic_error("nothing to append");
    for (const Token token : tokens) {
        cells_.add(cache_.position(), token, {0});
        cache_.appended(1);
    }
    rows_.clear();
    add_row(0, cache_.position());
}

void FakeDraftModel::branch(std::span<const int> parents, std::span<const Token> tokens) {
    const std::span<const int> sequences = cache_.branch(parents);
    const int position = cache_.position() + cache_.depth() - 1;
    for (size_t i = 0; i < tokens.size(); ++i) cells_.add(position, tokens[i], {sequences[i]});
    rows_.clear();
    for (const int sequence : sequences) add_row(sequence, position + 1);
}

}  // namespace medusa::testing
