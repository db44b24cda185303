// Medusa heads (Medusa 2.1): each depends on the hidden state alone, so one evaluation serves all levels.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "heads/graph.h"
#include "heads/levels.h"

namespace medusa {

// Logits of the first `depth` heads at a hidden state [h, 1]: [rows, depth].
ggml_tensor* medusa_logits(ggml_context* c, const Heads& heads, ggml_tensor* state, int depth);
// Tensors that it makes, at most.
size_t medusa_tensors(const Heads& heads, int depth);

// Evaluates the first `depth` heads at one hidden state: one ggml graph, built once, one read of the lm_head for all
// heads where they share it.
class MedusaLevels final : public HeadsLevels {
  public:
    MedusaLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads, std::shared_ptr<PrefixCache> cache);

    // The same candidates below every node: one row.
    std::span<const float> probabilities(int depth, std::span<const Token> paths) override;

  private:
    void begin_step(const DraftInput& input) override;

    HeadsGraph graph_;
    ggml_tensor* input_;
    std::span<const float> output_;  // [depth][output_rows]
};

}  // namespace medusa
