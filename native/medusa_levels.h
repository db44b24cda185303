// Medusa heads (Medusa 2.1): each depends on the hidden state alone, so one evaluation serves all levels.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "heads.h"
#include "level_source.h"

namespace medusa {

// Evaluates the first `head_count` heads at one hidden state: one ggml graph, built once, one read of the lm_head for
// all heads where they share it.
class MedusaLevels final : public LevelSource {
  public:
    MedusaLevels(std::shared_ptr<Heads> heads, int head_count, int threads);

    DrafterNeeds needs() const override { return {.hidden = true}; }
    int depth() const override { return head_count_; }
    void begin(const DraftInput& input) override { evaluate(input.hidden); }
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;

    // Probabilities [head_count][output_rows] for one hidden state; valid until the next call.
    std::span<const float> evaluate(std::span<const float> hidden);
    // The `ranks` most probable rows of one head in the newest evaluation, most probable first.
    void top(int head, int ranks, std::vector<int>& rows) const;

  private:
    void build();
    ggml_tensor* residual_block(int block, ggml_tensor* x);

    std::shared_ptr<Heads> heads_;
    int head_count_;
    ggml_backend_ptr backend_;
    ggml_context_ptr context_;
    ggml_gallocr_ptr allocator_;
    ggml_cgraph* graph_ = nullptr;
    ggml_tensor* input_ = nullptr;
    ggml_tensor* probabilities_ = nullptr;
    std::vector<float> output_;
    std::vector<int> ranked_;
};

}  // namespace medusa
