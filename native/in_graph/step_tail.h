// What the model's own graph does behind the output matrix: it accepts the tree, greedily, and drafts the next one; or
// it names the likeliest tokens of each row, for the host to accept, and the heads draft in a graph behind it.
#pragma once

#include <memory>
#include <vector>

#include "in_graph/acceptance.h"
#include "in_graph/drafts.h"
#include "in_graph/ranked_rows.h"
#include "in_graph/second_graph.h"
#include "llama/graph_tail.h"

namespace medusa::in_graph {

class StepTail final : public GraphTail {
  public:
    // drafts: may be null. heads: theirs.
    StepTail(std::unique_ptr<Drafts> drafts, std::shared_ptr<const Heads> heads)
        : drafts_(std::move(drafts)), heads_(std::move(heads)) {}

    void take_way(StepWay way) override;
    void begin(const Tree& tree, std::span<const Token> tokens, int position) override;
    ggml_tensor* build(ggml_context* c, ggml_cgraph* graph, ggml_tensor* logits, ggml_tensor* states) override;
    void set_inputs() override;
    std::optional<GreedyStep> end(std::span<const float> found) override;
    std::span<const RankedToken> ranked(int row) override { return rows_.row(row); }
    size_t most_tensors() const override;

    // Before drafted() is read: of ranked steps, the heads draft behind `node` of the newest decode and the token after
    // it. Throws as HeadsGraph does.
    void draft(int node, Token next);
    // Tokens from `position` on are gone.
    void rolled_back(int position);

    // Of the newest decode: as Drafts::build() has them.
    std::span<const float> drafted() const { return drafted_; }
    const Drafts& drafts() const { return *drafts_; }

  private:
    ggml_tensor* build_greedy(ggml_context* c, ggml_tensor* logits, ggml_tensor* states);

    StepWay way_ = StepWay::greedy;
    std::unique_ptr<Drafts> drafts_;
    std::shared_ptr<const Heads> heads_;
    TreeInput tree_input_;
    RankedRows rows_;
    std::unique_ptr<SecondGraph> second_;  // of ranked steps
    Tree tree_;
    std::vector<Token> tokens_;
    bool is_set_ = false;  // the input, for the next decode
    std::vector<float> drafted_;
};

}  // namespace medusa::in_graph
