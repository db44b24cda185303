// Lookahead decoding as a drafter.
#pragma once

#include "drafting/lookahead.h"

namespace medusa {

// One tree: the n-grams that begin with the root, to be verified, and the window, hidden, whose n-grams feed the pool.
// The prompt's n-grams are in the pool from the start.
class LookaheadDrafter final : public Drafter {
  public:
    explicit LookaheadDrafter(const LookaheadParams& params)
        : params_(params), pool_(params.ngram, params.guesses), window_(params) {}

    static TreeBounds bounds(const LookaheadParams& params);

    DrafterNeeds needs() const override { return {.rows = true}; }
    void begin(std::span<const Token> prompt) override;
    void draft(const DraftInput& input, Draft& out) override;
    void verified(const Verified& step) override;

  private:
    LookaheadParams params_;
    NgramPool pool_;
    JacobiWindow window_;
    TokenTrie trie_;
    Tree tree_;
    bool drawn_ = false;  // the newest draft holds the window
    std::vector<std::vector<Token>> found_;
};

}  // namespace medusa
