// A grammar during an answer: which tokens the sampler chain sees, and which drafts are worth a place.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "decoding/drafter.h"
#include "decoding/sampler.h"
#include "decoding/target.h"
#include "grammar/tokens.h"

namespace medusa {

// A sampler chain that sees only the tokens that a grammar allows: forbidden ones are gone before penalties and all
// that follows, as if their logits were minus infinity. apply() and accept() may throw GrammarLimit; apply() throws
// Error where no token of the vocabulary continues the text.
class GrammarChain final : public Chain {
  public:
    GrammarChain(std::unique_ptr<Chain> inner, std::shared_ptr<TokenGrammar> grammar, const SamplingParams& sampling);

    // Where the answer is complete: a token that nobody emits.
    void apply(std::span<const float> logits, std::vector<Candidate>& out) override;
    void apply(std::span<const RankedToken> ranked, std::vector<Candidate>& out) override;
    void accept(Token token) override;
    std::unique_ptr<Chain> clone() const override;

    // Reads what is there already. False: it does not follow the grammar, or nothing can be added.
    bool begin(std::span<const Token> text);
    // Of the text so far.
    int state() const { return state_; }
    TokenGrammar& grammar() const { return *grammar_; }

  private:
    bool apply_likeliest(std::span<const float> logits, std::vector<Candidate>& out);
    void apply_masked(std::span<const float> logits, std::vector<Candidate>& out);

    std::unique_ptr<Chain> inner_;
    std::shared_ptr<TokenGrammar> grammar_;
    SamplingParams sampling_;
    int state_;
    // Of one call.
    std::vector<int> top_;
    std::vector<RankedToken> ranked_;
    std::vector<float> masked_;
};

// Shapes drafts by a grammar: leaves out tokens that cannot follow, and adds those that spell out forced text.
//
// A forced text is not forced tokens: the model chooses how to split it. What is added is the tokenizer's own split of
// it, verified like any draft.
class GrammarDrafts {
  public:
    // most: of the trees that can be verified.
    GrammarDrafts(const Vocabulary& vocabulary, const TreeBounds& most) : vocabulary_(vocabulary), most_(most) {}

    // How forced text after `token` (with the state behind it) is likely to be split.
    struct Split {
        std::vector<Token> chain;
        std::vector<Token>
            ends;  // what may follow the chain: its last token, which may become one with more, or a part
    };
    const Split& forced(TokenGrammar& grammar, int state, Token token);
    // Whether forced text after a root makes a draft that no other drafter need add to.
    bool spelled_out(TokenGrammar& grammar, int state, Token root) {
        constexpr size_t enough = 4;
        return forced(grammar, state, root).chain.size() >= enough;
    }
    // Whether a token may follow a path. Like all about drafts, false rather than an error where that is too much work:
    // plain decoding would not ask.
    static bool allows(TokenGrammar& grammar, int state, std::span<const Token> path, Token token);
    // state: behind the root. room: most nodes. draft.tree stays valid until the next call.
    void shape(TokenGrammar& grammar, int state, int room, Draft& draft);
    // Another grammar: states have other numbers.
    void forget() { known_.clear(); }

  private:
    void prune(TokenGrammar& grammar, int state, Draft& draft);
    void extend(TokenGrammar& grammar, int room, Draft& draft);
    void add_split(int node, const Split& split, int room, Draft& draft);
    void add(int node, std::span<const Token> chain, int room, Draft& draft);
    void arrange(const std::vector<int>& parents, const std::vector<int>& depths, Draft& draft);
    static int followed(const Draft& draft, int node, std::span<const Token> chain, size_t& shared);
    Split split(TokenGrammar& grammar, const TokenGrammar::Forced& text, Token before) const;

    const Vocabulary& vocabulary_;
    TreeBounds most_;
    std::unordered_map<uint64_t, Split> known_;  // by state and token
    std::vector<int> states_;                    // behind the nodes of the draft
    Tree tree_;
};

}  // namespace medusa
