// Hydra and Hydra++ heads in the model's own graph: the levels of a tree, one after the other.
#pragma once

#include <memory>

#include "in_graph/device_embeddings.h"
#include "in_graph/drafts.h"

namespace medusa::in_graph {

class HydraDrafts final : public Drafts {
  public:
    // Throws as DeviceEmbeddings does.
    HydraDrafts(std::shared_ptr<Heads> heads, const DraftShape& shape, std::unique_ptr<Prefix> prefix);

    ggml_tensor* build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) override;
    ggml_tensor* level_logits(ggml_context* c, ggml_tensor* state, int depth, ggml_tensor* paths) override;
    size_t most_tensors() const override;

  private:
    // The nodes that a head is evaluated at, below depth 1.
    struct Columns {
        std::vector<int32_t> places{};  // of each among the candidates of the level above
        std::vector<int32_t> above{};   // the column that it hangs below
        // The same on the device.
        ggml_tensor *places_there = nullptr, *above_there = nullptr;
    };

    void plan(const Tree& shape);
    void plan(const GrownShape& shape);
    ggml_tensor* build_fixed(ggml_context* c, ggml_tensor* paths);
    ggml_tensor* build_grown(ggml_context* c, ggml_tensor* paths);
    ggml_tensor* lengthened(ggml_context* c, ggml_tensor* paths, ggml_tensor* above, ggml_tensor* candidates,
                            ggml_tensor* places) const;
    void upload();
    ggml_tensor* tokens_of(ggml_context* c, ggml_tensor* rows) const;

    std::shared_ptr<Heads> heads_;
    DeviceEmbeddings embeddings_;
    std::vector<Columns> columns_;  // of depth 1, whose only column is the root, 2, ...
    ggml_context_ptr context_;
    ggml_backend_buffer_ptr buffer_;
    ggml_tensor* token_of_row_ = nullptr;  // of a draft vocabulary, on the device: I32 [1, rows]
};

}  // namespace medusa::in_graph
