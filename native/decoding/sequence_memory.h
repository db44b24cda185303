// How committed tokens and drafts lie in the sequences of a model's memory.
#pragma once

#include <cstdint>
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
    // The running state of sequence 0 alone, without the cells of single tokens; empty where there is none.
    virtual std::vector<uint8_t> state() { return {}; }
    // Puts it back, with the position it had. False, and the memory has to be cleared: it was not taken.
    virtual bool set_state(std::span<const uint8_t> state) { return false; }
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
    // Keeps the first `count` positions, or as many of them as it can go back to. False: none, it has to be cleared.
    virtual bool truncate(int count) = 0;
    // Of a prompt that ends at `end`: where decoding is to stop for keep(); `end` where nowhere.
    virtual int next_keep(int end) const { return end; }
    // Remembers the present state, so that truncate() can go back to it.
    virtual void keep() {}
    // The memory was cleared.
    virtual void forget() = 0;
    // Before a tree of these tokens is decoded, behind the pending ones.
    virtual void prepare(const Tree& tree, std::span<const Token> tokens) = 0;
    // After it was decoded: keeps `path` (nodes from the root downwards), drops all other nodes.
    virtual void commit(const Tree& tree, const std::vector<int>& path) = 0;
    // After a failed decode, or a tree that will not be committed: drops whatever lies beyond position(), or goes
    // back as truncate() does. False as there.
    virtual bool rollback() = 0;
};

}  // namespace medusa
