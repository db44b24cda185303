// A model that is decoded ahead of its text, level by level.
#pragma once

#include <span>

#include "base/common.h"

namespace medusa {

// Committed tokens, and branches below them: each level's tokens follow tokens of the level above. Rows are the outputs
// of the newest append() or branch(). Whatever fails is an Error.
class BranchingModel {
  public:
    virtual ~BranchingModel() = default;

    virtual int vocab_size() const = 0;
    // Committed tokens.
    virtual int position() const = 0;
    // Drops the branches, and keeps the first `count` committed tokens, or, where the cache cannot be cut, none.
    virtual void truncate(int count) = 0;
    // Decodes and commits `tokens` (at least one); nothing branches. Row 0 is the last token's.
    virtual void append(std::span<const Token> tokens) = 0;
    // The next level: tokens[i] follows the token of row parents[i]. Row i is that of tokens[i].
    virtual void branch(std::span<const int> parents, std::span<const Token> tokens) = 0;
    // Commits a path, rows[d] of level d from the first one on, and drops all other branches.
    virtual void keep(std::span<const int> rows) = 0;

    virtual std::span<const float> logits(int row) = 0;
};

}  // namespace medusa
