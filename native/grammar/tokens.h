// Which tokens of a vocabulary may follow in a grammar.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/states.h"

namespace medusa {

// A vocabulary's texts as a tree of bytes. Built once, then shared.
class VocabularyTrie {
  public:
    // texts: by token; tokens without a text (control tokens) never follow. ends: tokens that end an answer.
    VocabularyTrie(std::vector<std::string> texts, const std::vector<bool>& ends);

    size_t size() const { return texts_.size(); }
    const std::string& text(Token token) const { return texts_[static_cast<size_t>(token)]; }
    bool ends(Token token) const { return ends_[static_cast<size_t>(token)]; }
    const std::vector<Token>& ending() const { return ending_; }

    // Nodes in the order of a walk: a node's descendants come right after it.
    struct Node {
        uint8_t byte;
        uint16_t depth;     // bytes up to it, itself included
        int32_t past;       // the first node after its descendants
        int32_t first = 0;  // of its tokens in tokens()
        int32_t count = 0;
    };
    const std::vector<Node>& nodes() const { return nodes_; }
    const std::vector<Token>& tokens() const { return tokens_; }
    int deepest() const { return deepest_; }

  private:
    std::vector<std::string> texts_;
    std::vector<bool> ends_;
    std::vector<Token> ending_, tokens_;
    std::vector<Node> nodes_;
    int deepest_ = 0;
};

// Tokens, one bit each.
class TokenSet {
  public:
    explicit TokenSet(size_t size) : words_((size + 63) / 64) {}
    void add(Token token) { words_[index(token)] |= uint64_t{1} << (static_cast<size_t>(token) % 64); }
    bool contains(Token token) const { return words_[index(token)] >> (static_cast<size_t>(token) % 64) & 1; }
    const std::vector<uint64_t>& words() const { return words_; }

  private:
    static size_t index(Token token) { return static_cast<size_t>(token) / 64; }
    std::vector<uint64_t> words_;
};

// A grammar over the tokens of a vocabulary. States are those of GrammarStates; `ended`: an end-of-generation token
// came. Every call may throw GrammarLimit. Not thread-safe.
class TokenGrammar {
  public:
    static constexpr int dead = GrammarStates::dead;
    static constexpr int ended = -2;

    TokenGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const VocabularyTrie> vocabulary);

    int start() const { return states_.start(); }
    // The state after a token; `dead`: it may not follow.
    int after(int state, Token token);
    bool allows(int state, Token token) { return after(state, token) != dead; }
    // All that may follow. Valid until the next call.
    const TokenSet& allowed(int state);
    // Whether a state's text is whole, and nothing can be added to it.
    bool is_complete(int state) const { return state == ended || states_.is_complete(state); }
    // Whether it is whole.
    bool accepts(int state) const { return state == ended || states_.accepts(state); }
    // The bytes that are certain to follow, `most` at most, and the state after them.
    struct Forced {
        std::string text;
        int state;
    };
    Forced forced(int state, size_t most);

    // Whether its states take half of the memory that they may take.
    bool is_half_full() const { return states_.bytes() > GrammarStates::most_bytes / 2; }

    const VocabularyTrie& vocabulary() const { return *vocabulary_; }
    const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }
    size_t masks_built() const { return masks_built_; }

  private:
    // Visits per call: some tenths of a second.
    static constexpr size_t visits_per_call = 2'000'000;
    static constexpr size_t most_mask_bytes = size_t{24} << 20;

    void build(int state, TokenSet& out);

    std::shared_ptr<const Grammar> grammar_;
    std::shared_ptr<const VocabularyTrie> vocabulary_;
    GrammarStates states_;
    std::unordered_map<int, TokenSet> masks_;
    std::vector<int> path_;  // states along the walk, by depth
    size_t masks_built_ = 0;
};

}  // namespace medusa
