// How committed tokens and drafts lie in the sequences of a model's memory.
#pragma once

#include <span>
#include <vector>

#include "decoding/tree.h"

namespace medusa {

// The two operations of such a memory, [from, to) in positions; to < 0 means "to the end".
class CacheOps {
  public:
    virtual ~CacheOps() = default;
    // sequence < 0: every sequence. False when the memory cannot remove a part (recurrent state).
    virtual bool remove(int sequence, int from, int to) = 0;
    // Adds what `source` holds to `target`; no data moves.
    virtual void copy(int source, int target, int from, int to) = 0;
};

// Sequence 0 holds what is committed.
class SequenceMemory {
  public:
    virtual ~SequenceMemory() = default;
    // Committed tokens.
    virtual int position() const = 0;
    // The last of the committed tokens that the memory does not hold (any more): they have to come before all others in
    // the next decode.
    virtual std::span<const Token> pending() const { return {}; }
    // The pending tokens and `count` others were decoded into sequence 0.
    virtual void appended(int count) = 0;
    // Keeps the first `count` positions. False: the memory cannot, and was left as it is.
    virtual bool truncate(int count) = 0;
    // The memory was cleared.
    virtual void forget() = 0;
    // Before a tree of these tokens is decoded, behind the pending ones.
    virtual void prepare(const Tree& tree, std::span<const Token> tokens) = 0;
    // After it was decoded: keeps `path` (nodes from the root downwards), drops all other nodes.
    virtual void commit(const Tree& tree, const std::vector<int>& path) = 0;
    // After a failed decode, or a tree that will not be committed: drops whatever lies beyond position(). False as in
    // truncate().
    virtual bool rollback() = 0;
};

// A KV cache, whose leaves follow a tree.
//
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

// The memory of a recurrent or hybrid model: one running state, which follows a chain and cannot be cut at will.
//
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
