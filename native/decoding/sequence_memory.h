// How committed tokens and drafts lie in the sequences of a model's memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decoding/state_bytes.h"
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
    // Sequence 0 cannot be cut to fewer tokens than this: layers with a sliding window may have lost older ones.
    virtual int shortest() { return 0; }
    // The running state of sequence 0 alone, without the cells of single tokens; empty where there is none.
    virtual std::vector<uint8_t> state() { return {}; }
    // Puts it back, with the position it had. False: not taken, and the memory has to be cleared.
    virtual bool set_state(std::span<const uint8_t> state) { return false; }
    // All of the memory, for set_all(). Its cells may end up elsewhere.
    virtual void save_all(StateWriter& out) = 0;
    // Replaces whatever is there. False: not taken, and the memory has to be cleared.
    virtual bool set_all(StateReader& in) = 0;
};

// Sequence 0 holds what is committed.
class SequenceMemory {
  public:
    virtual ~SequenceMemory() = default;
    // Committed tokens.
    virtual int position() const = 0;
    // The last committed tokens, where the memory does not hold them (any more): the next decode must begin with them.
    virtual std::span<const Token> pending() const { return {}; }
    // The pending tokens and `count` others were decoded into sequence 0.
    virtual void appended(int count) = 0;
    // Keeps the first `count` positions, or as many of them as it can go back to. False: none, it has to be cleared.
    virtual bool truncate(int count) = 0;
    // For a prompt that ends at `end`: where decoding has to stop for keep(); `end` if nowhere.
    virtual int next_keep(int end) const { return end; }
    // Remembers the present state, so that truncate() can go back to it.
    virtual void keep() {}
    // The memory was cleared.
    virtual void forget() = 0;
    // Called before a tree of these tokens is decoded, after the pending ones.
    virtual void prepare(const Tree& tree, std::span<const Token> tokens) = 0;
    // Called after it was decoded: keeps `path` (nodes from the root downwards), drops all other nodes.
    virtual void commit(const Tree& tree, const std::vector<int>& path) = 0;
    // After a failed decode, or for a tree that will not be committed: drops whatever lies beyond position(), or goes
    // back as truncate() does. Returns false as truncate() does.
    virtual bool rollback() = 0;
    // What is committed, for restore(). Between answers.
    virtual void save(StateWriter& out) = 0;
    // Replaces whatever is there. False, or an Error: not taken, and the memory has to be cleared.
    virtual bool restore(StateReader& in) = 0;
};

// A KV cache whose leaves follow a tree.
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
    void save(StateWriter& out) override;
    bool restore(StateReader& in) override;

  private:
    CacheOps& ops_;
    std::vector<int> in_step_;
};

// The memory of a recurrent or hybrid model: one running state, which follows a chain and cannot be cut at will.
//
// To cut off what was committed long ago, it goes back to a checkpoint: a copy of the state, taken shortly before the
// end of each prompt (the next one often differs where the answer begins) and now and then within long ones.
//
// A refused draft is taken back in one of two ways. With `snapshots`, the memory can step back by up to that many of
// the newest decode's tokens. Without, sequence 1 keeps the state from before a draft; it becomes sequence 0 again, and
// the accepted tokens are pending.
class ChainMemory final : public SequenceMemory {
  public:
    ChainMemory(CacheOps& ops, int snapshots) : ops_(ops), snapshots_(snapshots) {}

    int position() const override { return position_; }
    std::span<const Token> pending() const override { return pending_; }
    void appended(int count) override;
    bool truncate(int count) override;
    int next_keep(int end) const override;
    void keep() override;
    void forget() override;
    // The tree has to be a chain, of at most 1 + snapshots nodes where there are any.
    void prepare(const Tree& tree, std::span<const Token> tokens) override;
    void commit(const Tree& tree, const std::vector<int>& path) override;
    bool rollback() override;
    void save(StateWriter& out) override;
    bool restore(StateReader& in) override;

    // Tokens before the end of a prompt: a template opens an answer with fewer.
    static constexpr int before_end = 8;
    // Tokens of a long prompt between two checkpoints.
    static constexpr int stride = 2048;
    // Fewer tokens than this are decoded again instead.
    static constexpr int least = 32;
    // For all checkpoints; the oldest are dropped first, the newest stays.
    static constexpr size_t most_bytes = size_t{256} << 20, most_checkpoints = 32;

  private:
    struct Checkpoint {
        int position;
        std::vector<uint8_t> state;
    };

    void take_copy_back();
    void drop_copy();
    bool go_back(int count);
    int newest_checkpoint() const { return checkpoints_.empty() ? 0 : checkpoints_.back().position; }

    CacheOps& ops_;
    int snapshots_;
    int position_ = 0;
    std::vector<Token> pending_;
    std::vector<Token> chain_;             // the newest draft
    bool saved_ = false;                   // sequence 1 holds all but the pending tokens
    bool copied_ = false;                  // sequence 1 holds something
    std::vector<Checkpoint> checkpoints_;  // of what is committed, by position
};

}  // namespace medusa
