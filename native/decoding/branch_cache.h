// The bookkeeping that keeps one KV cache in step with branches that grow level by level.
#pragma once

#include <span>
#include <vector>

#include "decoding/tree_cache.h"

namespace medusa {

// Sequence 0 holds the committed positions; a branch is a sequence that holds all positions before its tip. The first
// child of a tip goes on in its sequence, each further one gets a new sequence with the same cells.
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

  private:
    void drop_branches();

    CacheOps& ops_;
    int max_sequences_;
    int position_ = 0, used_ = 1;           // used_: sequences with cells
    std::vector<std::vector<int>> levels_;  // sequence of each row
};

}  // namespace medusa
