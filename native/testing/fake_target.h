// A deterministic model without weights, for testing the algorithm exactly (docs/design.md, Lossless: tiers 1 and 2).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "decoding/sequence_memory.h"
#include "decoding/target.h"
#include "drafting/level_source.h"
#include "testing/fake_cells.h"

namespace medusa::testing {

// Logits are a hash of the whole path of tokens (memory 0) or of its last `memory` tokens (text that ends up repeating
// itself). With the whole path, any mistake in masks, positions or commits changes them. The cache is a list of cells
// with sequence sets, as in llama.cpp, edited only through CacheOps; reads check that each sequence is one unbroken
// path. With `snapshots` it is the memory of a recurrent model: a sequence is removed as a whole, or once by at most so
// many tokens of the newest decode.
class FakeTarget final : public Target, private CacheOps {
  public:
    FakeTarget(int vocab_size, int context_size, uint64_t seed, float sharpness, int max_sequences, int memory,
               std::optional<int> snapshots = std::nullopt);

    int vocab_size() const override { return vocab_size_; }
    int context_size() const override { return context_size_; }
    int position() const override { return sequences_->position(); }
    int truncate(int count) override;
    DecodeStatus prefill(std::span<const Token> tokens, const StopPoll& stop, const OnState& on_state) override;
    DecodeStatus verify(const Tree& tree, std::span<const Token> tokens, const StopPoll& stop) override;
    void commit(const Tree& tree, const std::vector<int>& path) override { sequences_->commit(tree, path); }
    void discard() override;
    void save(StateWriter& out) override { sequences_->save(out); }
    bool restore(StateReader& in) override { return sequences_->restore(in); }
    std::span<const float> logits(int row) override { return rows_.at(row); }
    std::span<const float> hidden(int row) override { return {}; }

    // Logits after a sequence of tokens, whatever the cache holds.
    std::vector<float> logits_after(const std::vector<Token>& tokens) const;
    const FakeCells& cells() const { return cells_; }

  private:
    bool remove(int sequence, int from, int to) override;
    void copy(int source, int target, int from, int to) override;
    std::vector<uint8_t> state() override;
    bool set_state(std::span<const uint8_t> state) override;
    void save_all(StateWriter& out) override { cells_.save_all(out); }
    bool set_all(StateReader& in) override;
    bool can_remove(int sequence, int from) const;
    void forget();
    void add_pending();

    int vocab_size_, context_size_;
    uint64_t seed_;
    float sharpness_;
    int memory_;
    std::optional<int> snapshots_;
    FakeCells cells_;
    int newest_ = 0;  // tokens of the newest decode that can still be stepped back
    std::vector<std::vector<float>> rows_;
    std::unique_ptr<SequenceMemory> sequences_;
};

// Knows the target. With probability `acceptance` (per path, by hash) the likeliest tokens after a path come in order;
// otherwise the best one comes last, so that greedy decoding rejects all drafts.
class FakeGuesses {
  public:
    FakeGuesses(const FakeTarget& target, double acceptance, uint64_t seed)
        : target_(target), acceptance_(acceptance), seed_(seed) {}
    std::vector<Token> after(const std::vector<Token>& path) const;

  private:
    const FakeTarget& target_;
    double acceptance_;
    uint64_t seed_;
};

// The guesses level by level; probabilities halve from rank to rank, and differ from node to node. Each level takes
// this many milliseconds. After `ends_after` drafts in a text, they end.
class FakeLevels final : public LevelSource {
  public:
    FakeLevels(const FakeGuesses& guesses, int depth, uint64_t seed, double level_ms, std::optional<int> ends_after)
        : guesses_(guesses), depth_(depth), seed_(seed), level_ms_(level_ms), ends_after_(ends_after) {}
    DrafterNeeds needs() const override { return {}; }
    int depth() const override { return depth_; }
    void prompt(std::span<const Token>) override { begun_ = 0; }
    void begin(const DraftInput& input) override;
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;

  private:
    FakeGuesses guesses_;
    int depth_;
    uint64_t seed_;
    double level_ms_;
    std::optional<int> ends_after_;
    int begun_ = 0;
    std::vector<Token> before_;  // the context without the root
};

// Token t is one printable byte; token 0 ends the generation.
class FakeVocabulary final : public Vocabulary {
  public:
    std::vector<Token> split(const std::string& text) const override {
        std::vector<Token> tokens;
        for (const char byte : text) tokens.push_back(byte - '!');
        return tokens;
    }
    std::string piece(Token token) const override { return std::string(1, static_cast<char>('!' + token % 90)); }
    bool is_end_of_generation(Token token) const override { return token == 0; }
};

}  // namespace medusa::testing
