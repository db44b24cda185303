// The bookkeeping that keeps one KV cache in step with a tree's leaf sequences.
#pragma once

#include <vector>

#include "decoding/sequence_memory.h"

namespace medusa {

// Invariants between calls: sequence 0 holds positions [0, position()), each once and nothing else; sequence s holds
// exactly the first in_step_[s] of the same cells. Every call of `remove` or `copy` scans the whole cache, so only the
// leaves that a step used are touched, and a step that accepts nothing costs a single scan.
class TreeCache final : public SequenceMemory {
  public:
    TreeCache(CacheOps& ops, int max_sequences) : ops_(ops), in_step_(max_sequences, 0) {}

    int position() const override { return in_step_[0]; }
    void appended(int count) override { in_step_[0] += count; }
    bool truncate(int count) override;
    void forget() override;
    // Brings the tree's leaves up to sequence 0 before the tree is decoded.
    void prepare(const Tree& tree, std::span<const Token> tokens) override;
    void commit(const Tree& tree, const std::vector<int>& path) override;
    bool rollback() override { return ops_.remove(-1, position(), -1); }

  private:
    CacheOps& ops_;
    std::vector<int> in_step_;
};

}  // namespace medusa
