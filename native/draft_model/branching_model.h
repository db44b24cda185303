// A model that decodes ahead of its text, level by level, and how the branches lie in its cache.
#pragma once

#include <span>
#include <vector>

#include "decoding/sequence_memory.h"

namespace medusa {

// Committed tokens, and branches below them: each level's tokens follow tokens of the level above. Rows are the outputs
// of the newest append() or branch(). Any failure throws Error.
class BranchingModel {
  public:
    virtual ~BranchingModel() = default;

    virtual int vocab_size() const = 0;
    // How many tokens are committed.
    virtual int position() const = 0;
    // Drops the branches, and keeps the first `count` committed tokens, or none where the cache cannot be cut.
    virtual void truncate(int count) = 0;
    // Decodes and commits `tokens` (at least one); nothing branches. Row 0 belongs to the last token.
    virtual void append(std::span<const Token> tokens) = 0;
    // Decodes the next level: tokens[i] follows the token of row parents[i]. Row i belongs to tokens[i].
    virtual void branch(std::span<const int> parents, std::span<const Token> tokens) = 0;
    // Commits a path, rows[d] of level d from the first one on, and drops all other branches.
    virtual void keep(std::span<const int> rows) = 0;

    // The cache of the committed tokens, while nothing branches. restore() as in SequenceMemory.
    virtual void save(StateWriter& out) = 0;
    virtual bool restore(StateReader& in) = 0;

    virtual std::span<const float> logits(int row) = 0;
};

// Keeps one KV cache in step with branches that grow level by level. Sequence 0 holds the committed positions; a branch
// is a sequence that holds all positions before its tip. The first child of a tip continues in its sequence; each
// further one gets a new sequence with the same cells.
class BranchCache {
  public:
    BranchCache(CacheOps& ops, int max_sequences) : ops_(ops), max_sequences_(max_sequences) {}

    int position() const { return position_; }
    int depth() const { return static_cast<int>(levels_.size()); }
    // Tokens were decoded into sequence 0, while nothing branched below it.
    void appended(int count) { position_ += count; }
    // Drops the branches and keeps `count` positions. False: the cache cannot do so, and has to be cleared.
    bool truncate(int count);
    void forget();
    // Called before a level is decoded at position() + depth(): returns the sequence of each row, given its parent's
    // row in the level above. Throws Error when there are more branches than sequences.
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
