// The memory of a recurrent or hybrid model: one running state, which follows a chain and cannot be cut at will.
#pragma once

#include <cstdint>
#include <vector>

#include "decoding/sequence_memory.h"

namespace medusa {

// What was committed long ago is cut off by going back to a checkpoint: a copy of the state, taken shortly before the
// end of each prompt (the next one often differs where the answer begins) and now and then within long ones.
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
    int next_keep(int end) const override;
    void keep() override;
    void forget() override;
    // The tree has to be a chain, of at most 1 + snapshots nodes where there are any.
    void prepare(const Tree& tree, std::span<const Token> tokens) override;
    void commit(const Tree& tree, const std::vector<int>& path) override;
    bool rollback() override;

    // Tokens before the end of a prompt: the words with which a template opens an answer are fewer.
    static constexpr int before_end = 8;
    // Tokens of a long prompt between two checkpoints.
    static constexpr int stride = 2048;
    // Fewer tokens are decoded again instead.
    static constexpr int least = 32;
    // Of all checkpoints; the oldest go first, the newest stays.
    static constexpr size_t most_bytes = size_t{256} << 20, most_checkpoints = 32;

  private:
    struct Checkpoint {
        int position;
        std::vector<uint8_t> state;
    };

    void restore();
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
