// Medusa heads (Medusa 2.1): each depends on the hidden state alone, so one evaluation serves all levels.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "heads/graph.h"
#include "heads/levels.h"

namespace medusa {

// Evaluates the first `depth` heads at one hidden state: one ggml graph, built once, one read of the lm_head for all
// heads where they share it.
class MedusaLevels final : public HeadsLevels {
  public:
    MedusaLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads);

    // The same candidates below every node: one row.
    std::span<const float> probabilities(int depth, std::span<const Token> paths) override;

  private:
    void begin_step(const DraftInput& input) override;
    std::vector<ggml_tensor*> blocks();
    ggml_tensor* logits(const std::vector<ggml_tensor*>& x);

    HeadsGraph graph_;
    ggml_tensor* input_;
    std::span<const float> output_;  // [depth][output_rows]
};

}  // namespace medusa
