// The bookkeeping that keeps one KV cache in step with a tree's leaf sequences.
#pragma once

#include <vector>

#include "decoding/tree.h"

namespace medusa {

// The two cell operations of a unified KV cache, [from, to) in positions; to < 0 means "to the end".
class CacheOps {
  public:
    virtual ~CacheOps() = default;
    // sequence < 0: every sequence. False when the cache cannot remove a part (recurrent state).
    virtual bool remove(int sequence, int from, int to) = 0;
    // Adds the cells of `source` to `target`; no data moves.
    virtual void copy(int source, int target, int from, int to) = 0;
};

// Invariants between calls: sequence 0 holds positions [0, position()), each once and nothing else; sequence s holds
// exactly the first in_step_[s] of the same cells. Every call of `remove` or `copy` scans the whole cache, so only the
// leaves that a step used are touched, and a step that accepts nothing costs a single scan.
class TreeCache {
  public:
    TreeCache(CacheOps& ops, int max_sequences) : ops_(ops), in_step_(max_sequences, 0) {}

    int position() const { return in_step_[0]; }
    // Tokens were decoded into sequence 0.
    void appended(int count) { in_step_[0] += count; }
    // Keeps the first `count` positions. False: the cache cannot, and was left as it is.
    bool truncate(int count);
    void forget();
    // Brings the tree's leaves up to sequence 0 before the tree is decoded.
    void prepare(const Tree& tree);
    // After the tree was decoded at position(): keeps `path` (nodes from the root downwards), drops all other nodes.
    void commit(const Tree& tree, const std::vector<int>& path);
    // After a failed decode: drops whatever lies beyond position(). False as in truncate().
    bool rollback() { return ops_.remove(-1, position(), -1); }

  private:
    CacheOps& ops_;
    std::vector<int> in_step_;
};

}  // namespace medusa
