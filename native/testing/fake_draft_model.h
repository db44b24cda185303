// A draft model without weights: it knows the fake target as well as the test wants.
#pragma once

#include "draft_model/branching_model.h"
#include "testing/fake_target.h"

namespace medusa::testing {

// Its rows follow from the tokens that its cache shows, so that any mistake in the bookkeeping of branches shows in its
// guesses.
class FakeDraftModel final : public BranchingModel {
  public:
    FakeDraftModel(const FakeGuesses& guesses, int vocab_size, int max_sequences)
        : guesses_(guesses), vocab_size_(vocab_size), cache_(cells_, max_sequences) {}

    int vocab_size() const override { return vocab_size_; }
    int position() const override { return cache_.position(); }
    void truncate(int count) override { cache_.truncate(count); }
    void append(std::span<const Token> tokens) override;
    void branch(std::span<const int> parents, std::span<const Token> tokens) override;
    void keep(std::span<const int> rows) override { cache_.keep(rows); }
    void save(StateWriter& out) override { cache_.save(out); }
    bool restore(StateReader& in) override { return cache_.restore(in); }
    std::span<const float> logits(int row) override { return rows_.at(row); }

  private:
    void add_row(int sequence, int length);

    FakeGuesses guesses_;
    int vocab_size_;
    FakeCells cells_;
    BranchCache cache_;
    std::vector<std::vector<float>> rows_;
};

}  // namespace medusa::testing
