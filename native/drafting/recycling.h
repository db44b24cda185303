// What the model itself found likely after the same one or two tokens: drafts without heads and without training (Token
// Recycling, Luo et al. 2024, arXiv:2408.08696; here keyed by two tokens, too, and with learned worth).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drafting/level_source.h"

namespace medusa {

// The newest likeliest tokens after each token, and after each pair of tokens, as far as there is room: a new pair
// replaces another one.
class RecyclingTable {
  public:
    static constexpr int width = 8;
    struct Entry {
        std::array<Token, width> tokens;  // likeliest first; -1: fewer are known
        uint8_t lead;                     // how far the first is ahead of the second, in classes
    };
    static constexpr int leads = 4;

    explicit RecyclingTable(int vocab_size);

    // Stores what is likeliest after `before` and then `token`: the first `width` tokens at most.
    void store(Token before, Token token, const Likeliest& likeliest);
    void store(Token before, Token token, std::span<const float> logits);
    // nullptr: not known.
    const Entry* after(Token token) const;
    const Entry* after(Token before, Token token) const;
    // The entries that are known.
    void save(StateWriter& out) const;
    void restore(StateReader& in);

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
    // pair: from an entry of two tokens; single: from an entry of one token alone; rest: from one of one token, where
    // the entry of two did not list it.
    enum Kind { pair, single, rest, kinds };

    RecyclingWorth();
    void record(Kind kind, int lead, int rank, bool came);
    float probability(Kind kind, int lead, int rank) const;

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
    void save(StateWriter& out) override { table_.save(out); }
    void restore(StateReader& in) override { table_.restore(in); }

  private:
    void guesses(Token before, Token token);
    void learn(Token before, Token token, Token came);

    RecyclingTable table_;
    RecyclingWorth worth_;
    Token before_root_ = -1;
    std::vector<Guess> guesses_;
};

// Draft heads and recycled tokens in one tree.
//
// Each node gets the likeliest tokens of both, each token once; as far as the heads reach, they know best what theirs
// are worth.
class MergedLevels final : public LevelSource {
  public:
    MergedLevels(std::unique_ptr<LevelSource> heads, std::unique_ptr<LevelSource> recycled)
        : heads_(std::move(heads)), recycled_(std::move(recycled)) {}

    DrafterNeeds needs() const override {
        DrafterNeeds needs = heads_->needs();
        needs.rows = true;
        return needs;
    }
    bool is_free() const override { return heads_->is_free(); }
    int depth() const override { return std::max(heads_->depth(), recycled_->depth()); }
    void prompt(std::span<const Token> prompt) override { heads_->prompt(prompt); }
    void committed(int position, Token token, std::span<const float> state) override {
        heads_->committed(position, token, state);
    }
    int resumes_at(int same) const override { return heads_->resumes_at(same); }
    void rolled_back(int position, int same) override { heads_->rolled_back(position, same); }
    void verified(const Verified& step) override { recycled_->verified(step); }
    void save(StateWriter& out) override {
        heads_->save(out);
        recycled_->save(out);
    }
    void restore(StateReader& in) override {
        heads_->restore(in);
        recycled_->restore(in);
    }
    void begin(const DraftInput& input) override {
        asks_heads_ = true;
        heads_->begin(input);
        recycled_->begin(input);
    }
    bool begin_free(const DraftInput& input) override {
        asks_heads_ = heads_->begin_free(input);
        recycled_->begin(input);
        return true;
    }
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;

  private:
    void merge_row(size_t of_heads, size_t of_recycled, size_t width, LevelDrafts& out) const;

    std::unique_ptr<LevelSource> heads_, recycled_;
    bool asks_heads_ = true;  // in this step
    LevelDrafts of_heads_, of_recycled_;
    std::vector<Token> reached_;  // paths below which the heads are asked
    std::vector<bool> is_reached_;
};

}  // namespace medusa
