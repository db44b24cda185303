// The cells of a KV cache without keys and values: positions, tokens, and the sequences that see them.
#pragma once

#include <set>
#include <vector>

#include "decoding/sequence_memory.h"

namespace medusa::testing {

// Edited in the same way as llama.cpp's cells.
class FakeCells final : public CacheOps {
  public:
    void add(int position, Token token, std::set<int> sequences);
    bool remove(int sequence, int from, int to) override;
    void copy(int source, int target, int from, int to) override;
    // Saves one sequence, 0. Cells come back in another order.
    void save_all(StateWriter& out) override;
    bool set_all(StateReader& in) override;
    // Tokens of one sequence; throws std::logic_error if its positions are not 0, 1, 2, ...
    std::vector<Token> sequence(int id) const;
    size_t size() const { return cells_.size(); }
    // Counts remove() and copy().
    int64_t calls() const { return calls_; }

  private:
    struct Cell {
        int position;
        Token token;
        std::set<int> sequences;
    };
    std::vector<Cell> cells_;
    int64_t calls_ = 0;
};

}  // namespace medusa::testing
