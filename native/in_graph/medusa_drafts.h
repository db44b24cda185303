// Medusa heads in the model's own graph: one column for each depth.
#pragma once

#include <memory>

#include "in_graph/drafts.h"

namespace medusa::in_graph {

class MedusaDrafts final : public Drafts {
  public:
    MedusaDrafts(std::shared_ptr<Heads> heads, const DraftShape& shape, std::unique_ptr<Prefix> prefix);

    ggml_tensor* build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) override;
    ggml_tensor* level_logits(ggml_context* c, ggml_tensor* state, int depth, ggml_tensor* paths) override;
    size_t most_tensors() const override;

  private:
    std::shared_ptr<Heads> heads_;
};

}  // namespace medusa::in_graph
