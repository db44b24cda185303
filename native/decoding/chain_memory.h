// The memory of a recurrent or hybrid model: one running state, which follows a chain and cannot be cut at will.
#pragma once

#include <vector>

#include "decoding/sequence_memory.h"

namespace medusa {

// A refused draft is taken back in one of two ways. With `snapshots`, the memory can step back by up to so many of the
// newest decode's tokens. Without, sequence 1 keeps the state from before a draft; it becomes sequence 0 again, and the
// accepted tokens are pending.
class ChainMemory final : public SequenceMemory {
  public:
    ChainMemory(CacheOps& ops, int snapshots) : ops_(ops), snapshots_(snapshots) {}

    int position() const override { return position_; }
    std::span<const Token> pending() const override { return pending_; }
    void appended(int count) override;
    bool truncate(int count) override;
    void forget() override;
    // The tree has to be a chain, of at most 1 + snapshots nodes where there are any.
    void prepare(const Tree& tree, std::span<const Token> tokens) override;
    void commit(const Tree& tree, const std::vector<int>& path) override;
    bool rollback() override;

  private:
    void restore();

    CacheOps& ops_;
    int snapshots_;
    int position_ = 0;
    std::vector<Token> pending_;
    std::vector<Token> chain_;  // the newest draft
    bool saved_ = false;        // sequence 1 holds all but the pending tokens
};

}  // namespace medusa
