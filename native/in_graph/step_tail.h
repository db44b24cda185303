// What the model's own graph does behind the output matrix: it accepts the tree, greedily, and drafts the next one.
#pragma once

#include <memory>
#include <vector>

#include "in_graph/acceptance.h"
#include "in_graph/drafts.h"
#include "llama/graph_tail.h"

namespace medusa::in_graph {

class StepTail final : public GraphTail {
  public:
    // drafts: may be null.
    explicit StepTail(std::unique_ptr<Drafts> drafts) : drafts_(std::move(drafts)) {}

    void begin(const Tree& tree, std::span<const Token> tokens, int position) override;
    ggml_tensor* build(ggml_context* c, ggml_tensor* logits, ggml_tensor* states) override;
    void set_inputs() override;
    std::optional<GreedyStep> end(std::span<const float> found) override;
    size_t most_tensors() const override;
    // Tokens from `position` on are gone.
    void rolled_back(int position);

    // Of the newest decode: rows of the heads' output matrices as Drafts::build() has them.
    std::span<const float> drafted() const { return drafted_; }
    const std::vector<LevelShape>& levels() const { return drafts_->levels(); }

  private:
    std::unique_ptr<Drafts> drafts_;
    TreeInput tree_input_;
    Tree tree_;
    std::vector<Token> tokens_;
    bool is_set_ = false;  // the input, for the next decode
    std::vector<float> drafted_;
};

}  // namespace medusa::in_graph
