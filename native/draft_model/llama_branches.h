// A llama.cpp model that decodes ahead of its text.
#pragma once

#include <memory>
#include <vector>

#include "draft_model/branching_model.h"
#include "llama/context.h"

namespace medusa {

class LlamaBranches final : public BranchingModel {
  public:
    // bounds: branches at a time, and rows of one level. params.context_size: cells for the text; cells for `ahead`
    // tokens decoded below it are added.
    LlamaBranches(std::shared_ptr<LlamaModel> model, ContextParams params, const TreeBounds& bounds, int ahead);

    int vocab_size() const override { return context_.model().vocab_size(); }
    int position() const override { return cache_.position(); }
    void truncate(int count) override;
    void append(std::span<const Token> tokens) override;
    void branch(std::span<const int> parents, std::span<const Token> tokens) override;
    void keep(std::span<const int> rows) override { cache_.keep(rows); }
    void save(StateWriter& out) override { cache_.save(out); }
    bool restore(StateReader& in) override { return cache_.restore(in); }
    std::span<const float> logits(int row) override { return context_.logits(first_row_ + row); }

  private:
    void decode();

    LlamaContext context_;
    BranchCache cache_;
    std::vector<BatchRow> rows_;
    int first_row_ = 0;  // in the batch: the first of the newest rows
};

// Throws Error unless both models have the same tokens; one may have additional padding tokens.
void check_same_vocabulary(const LlamaModel& model, const LlamaModel& draft);

}  // namespace medusa
