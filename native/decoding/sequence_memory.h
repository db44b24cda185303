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

}  // namespace medusa
