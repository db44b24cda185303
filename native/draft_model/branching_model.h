// A model that is decoded ahead of its text, level by level, and how the branches lie in its cache.
#pragma once

#include <span>
#include <vector>

#include "decoding/sequence_memory.h"

namespace medusa {

// Committed tokens, and branches below them: each level's tokens follow tokens of the level above. Rows are the outputs
// of the newest append() or branch(). Whatever fails is an Error.
class BranchingModel {
  public:
    virtual ~BranchingModel() = default;

    virtual int vocab_size() const = 0;
    // Committed tokens.
    virtual int position() const = 0;
    // Drops the branches, and keeps the first `count` committed tokens, or, where the cache cannot be cut, none.
    virtual void truncate(int count) = 0;
    // Decodes and commits `tokens` (at least one); nothing branches. Row 0 is the last token's.
    virtual void append(std::span<const Token> tokens) = 0;
    // The next level: tokens[i] follows the token of row parents[i]. Row i is that of tokens[i].
    virtual void branch(std::span<const int> parents, std::span<const Token> tokens) = 0;
    // Commits a path, rows[d] of level d from the first one on, and drops all other branches.
    virtual void keep(std::span<const int> rows) = 0;

    // The committed tokens' cache, where nothing branches. restore() as in SequenceMemory.
    virtual void save(StateWriter& out) = 0;
    virtual bool restore(StateReader& in) = 0;

    virtual std::span<const float> logits(int row) = 0;
};

// The bookkeeping that keeps one KV cache in step with branches that grow level by level. Sequence 0 holds the
// committed positions; a branch is a sequence that holds all positions before its tip. The first child of a tip goes on
// in its sequence, each further one gets a new sequence with the same cells.
class BranchCache {
  public:
    BranchCache(CacheOps& ops, int max_sequences) : ops_(ops), max_sequences_(max_sequences) {}

    int position() const { return position_; }
    int depth() const { return static_cast<int>(levels_.size()); }
    // Tokens were decoded into sequence 0, below which nothing branches.
    void appended(int count) { position_ += count; }
    // Drops the branches and keeps `count` positions. False: the cache cannot, and has to be cleared.
    bool truncate(int count);
    void forget();
    // Before a level is decoded at position() + depth(): the sequence of each of its rows, by their parents' rows in
    // the level above. Throws Error when there are more branches than sequences.
    std::span<const int> branch(std::span<const int> parents);
    // As in BranchingModel.
    void keep(std::span<const int> rows);
    void save(StateWriter& out) const;
    bool restore(StateReader& in);

  private:
    void drop_branches();

    CacheOps& ops_;
    int max_sequences_;
    int position_ = 0, used_ = 1;           // used_: sequences with cells
    std::vector<std::vector<int>> levels_;  // sequence of each row
};

}  // namespace medusa
