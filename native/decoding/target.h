// The model being decoded, as the engine sees it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "decoding/in_graph.h"
#include "decoding/state_bytes.h"
#include "decoding/tree.h"

namespace medusa {

enum class DecodeStatus { ok, context_full, cancelled };

// Polled between pieces of work; true ends the decode at the next safe point.
using StopPoll = std::function<bool()>;

// The hidden state of a committed token.
using OnState = std::function<void(int position, std::span<const float> state)>;

// How the newest decode ran on the processor.
struct ThreadUse {
    int threads = 0;          // 0: not known
    int most = 0;             // that it might have used
    bool repeated = false;    // a first try was given up, since its threads did not run
    const char* reason = "";  // for the number: "asked", "all", "others" (programs), "slower" (with more threads)
};

// A language model with a KV cache, batch 1. Rows are the outputs of the newest decode: row i belongs to node i of a
// tree; a prefill leaves one row, its last token.
class Target {
  public:
    virtual ~Target() = default;

    virtual int vocab_size() const = 0;
    virtual int context_size() const = 0;
    // Committed tokens in the cache.
    virtual int position() const = 0;
    // Keeps the first `count` committed tokens, or fewer if the cache cannot be cut there. Returns what is left.
    virtual int truncate(int count) = 0;

    // prefill() and verify() return when the work is done, so that timing them gives their cost.
    // Decodes and commits `tokens` (at least one) after position(); on_state, if given, gets the hidden state of each.
    // Not ok: position() tells how much is committed.
    virtual DecodeStatus prefill(std::span<const Token> tokens, const StopPoll& stop,
                                 const OnState& on_state = nullptr) = 0;
    // Decodes a tree at position(); tokens[i] belongs to node i. Not ok: nothing of the tree stays, and position()
    // tells how much does.
    virtual DecodeStatus verify(const Tree& tree, std::span<const Token> tokens, const StopPoll& stop) = 0;
    // Keeps the nodes of `path` (from the root downwards) of the tree just verified.
    virtual void commit(const Tree& tree, const std::vector<int>& path) = 0;
    // Drops a verified tree that will not be committed.
    virtual void discard() = 0;

    // The cache of the committed tokens, for restore() by a target of the same model. Between answers.
    virtual void save(StateWriter& out) = 0;
    // Replaces what is there. False, or an Error, where it does not fit this target, which must then be cut to 0.
    virtual bool restore(StateReader& in) = 0;

    virtual std::span<const float> logits(int row) = 0;
    // State after the final norm, or after the requested layer; only when hidden states were requested at construction,
    // and not accepted in the graph.
    virtual std::span<const float> hidden(int row) = 0;

    virtual ThreadUse thread_use() const { return {}; }
    // nullptr: all steps take place on the host.
    virtual GraphSteps* in_graph() { return nullptr; }
};

class VocabularyTrie;

// Converts token ids to text.
class Vocabulary {
  public:
    virtual ~Vocabulary() = default;
    // The tokens that the tokenizer splits a text into, without special ones.
    virtual std::vector<Token> split(const std::string& text) const = 0;
    // The texts of its `size` tokens; built at the first call, from any thread.
    std::shared_ptr<const VocabularyTrie> trie(int size) const;
    // The token's bytes, empty for control tokens. May be part of a UTF-8 character.
    virtual std::string piece(Token token) const = 0;
    virtual bool is_end_of_generation(Token token) const = 0;

  private:
    mutable std::once_flag trie_built_;
    mutable std::shared_ptr<const VocabularyTrie> trie_;
};

}  // namespace medusa
