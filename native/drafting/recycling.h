// What the model itself found likely after the same one or two tokens: drafts without heads and without training (Token
// Recycling, Luo et al. 2024, arXiv:2408.08696; here keyed by two tokens, too, and with learned worth).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drafting/level_source.h"

namespace medusa {

// The newest likeliest tokens after each token, and after each pair of tokens, as far as there is room: a pair takes
// the place of another one.
class RecyclingTable {
  public:
    static constexpr int width = 8;
    struct Entry {
        std::array<Token, width> tokens;  // likeliest first; -1: fewer are known
        uint8_t lead;                     // how far the first is ahead of the second, in classes
    };
    static constexpr int leads = 4;

    explicit RecyclingTable(int vocab_size);
    int vocab_size() const { return static_cast<int>(singles_.size()); }

    // What is likeliest after `before` and then `token`; of more than `width` tokens the first.
    void store(Token before, Token token, const Likeliest& likeliest);
    void store(Token before, Token token, std::span<const float> logits);
    // nullptr: not known.
    const Entry* after(Token token) const;
    const Entry* after(Token before, Token token) const;

    // before < 0: the entry of the token alone.
    void put(Token before, Token token, const Entry& entry);
    template <typename Visit>  // (token, entry)
    void each_single(Visit&& visit) const {
        for (Token token = 0; token < vocab_size(); ++token) {
            if (singles_[token].tokens[0] >= 0) visit(token, singles_[token]);
        }
    }
    template <typename Visit>  // (before, token, entry)
    void each_pair(Visit&& visit) const {
        for (const Pair& pair : pairs_) {
            if (pair.before >= 0) visit(pair.before, pair.token, pair.entry);
        }
    }

  private:
    static constexpr size_t pairs = size_t{1} << 16;
    struct Pair {
        Token before = -1, token = -1;
        Entry entry;
    };
    static size_t slot(Token before, Token token);

    std::vector<Entry> singles_;  // by token
    std::vector<Pair> pairs_;     // by hash
    std::vector<int> largest_;
};

// How often the token at a rank of an entry came: moving averages that start from a prior.
class RecyclingWorth {
  public:
    // pair: of an entry of two tokens; single: of one token alone; rest: of one token, where that of two did not list
    // it.
    enum Kind { pair, single, rest, kinds };

    RecyclingWorth();
    void record(Kind kind, int lead, int rank, bool came);
    float probability(Kind kind, int lead, int rank) const;
    // All of them, (came, tried) in a fixed order.
    std::vector<double> counts() const;
    // False, and nothing is set, where there are more or fewer, or some cannot be.
    bool set_counts(std::span<const double> counts);

  private:
    struct Counts {
        double came, tried;
    };
    Counts counts_[kinds][RecyclingTable::leads][RecyclingTable::width];
};

class RecyclingLevels final : public LevelSource {
  public:
    static constexpr int deepest = 8;

    explicit RecyclingLevels(int vocab_size) : table_(vocab_size) {}

    DrafterNeeds needs() const override { return {.rows = true}; }
    bool is_free() const override { return true; }
    bool begin_free(const DraftInput& input) override {
        begin(input);
        return true;
    }
    int depth() const override { return deepest; }
    void begin(const DraftInput& input) override;
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;
    void verified(const Verified& step) override;

    // What was learned.
    RecyclingTable& table() { return table_; }
    RecyclingWorth& worth() { return worth_; }

  private:
    void guesses(Token before, Token token);
    void learn(Token before, Token token, Token came);

    RecyclingTable table_;
    RecyclingWorth worth_;
    Token before_root_ = -1;
    std::vector<Guess> guesses_;
};

}  // namespace medusa
