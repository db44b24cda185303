// What the model's own graph does after the output matrix: it accepts the tree greedily and drafts the next one; or it
// names the likeliest tokens of each row, for the host to accept, and the heads draft in a graph after it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "in_graph/acceptance.h"
#include "in_graph/drafts.h"
#include "in_graph/named_rows.h"
#include "in_graph/second_graph.h"
#include "llama/graph_tail.h"

namespace medusa::in_graph {

inline constexpr size_t greedy_numbers = 3;  // from acceptance, before all others

class StepTail final : public GraphTail {
  public:
    // drafts: may be null. heads: those of the drafts. likeliest: a drafter learns from what is likely after each node.
    StepTail(std::unique_ptr<Drafts> drafts, std::shared_ptr<const Heads> heads, bool likeliest)
        : drafts_(std::move(drafts)), heads_(std::move(heads)), names_likeliest_(likeliest) {}

    void take_way(StepWay way) override;
    void begin(const Tree& tree, std::span<const Token> tokens, int position) override;
    bool reads_prompt() const override { return prefix() && prefix()->reads_prompt(); }
    void begin_prompt(int count, int position) override;
    int kind() const override { return static_cast<int>(kind_); }
    ggml_tensor* build(ggml_context* c, ggml_cgraph* graph, ggml_tensor* logits, ggml_tensor* states) override;
    bool brings() const override { return kind_ != GraphKind::prompt; }
    int64_t numbers_of_row(int64_t vocabulary) const override;
    void set_inputs() override;
    std::optional<GreedyStep> end(std::span<const float> found) override;
    void end_prompt() override { prefix()->end(prompt_count_); }
    void accepted(int node) override;
    std::span<const RankedToken> ranked(int row) override;
    Likeliest likeliest(int row) override;
    size_t most_tensors() const override;

    // The next decode drafts nothing for the step after it. Without this call before it, each decode does.
    void rest() { rests_ = true; }
    // In ranked steps, called before drafted() is read: the heads draft after `node` of the newest decode and the token
    // after it. Throws as DeviceGraph does.
    void draft(int node, Token next);
    // The same where tokens are drawn: draw_level() then gives the levels in turn.
    void begin_drawing(int node);
    void draw_level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
        drawn_->level(*drafts_, depth, paths, ranks, out);
    }
    // Tokens from `position` on are removed.
    void rolled_back(int position);

    // From the newest decode, as Drafts::build() returns them; empty: it drafted nothing.
    std::span<const float> drafted() const { return drafted_; }
    const Drafts& drafts() const { return *drafts_; }
    // For heads behind a prefix layer, else null.
    Prefix* prefix() const { return drafts_ ? drafts_->prefix() : nullptr; }

  private:
    ggml_tensor* build_greedy(ggml_context* c, ggml_cgraph* graph, ggml_tensor* logits, ggml_tensor* states);
    void settle();

    StepWay way_ = StepWay::greedy;
    GraphKind kind_ = GraphKind::drafts;
    std::unique_ptr<Drafts> drafts_;
    std::shared_ptr<const Heads> heads_;
    const bool names_likeliest_;
    bool rests_ = false;  // the next decode
    TreeInput tree_input_;
    RankedRows ranked_;
    LikeliestRows likeliest_;
    std::unique_ptr<SecondGraph> second_;  // for ranked steps
    DrawnLevels* drawn_ = nullptr;         // from it, in this step
    std::optional<int> unsettled_;         // in ranked steps: an accepted node unknown to the prefix layer
    int prompt_count_ = 0;
    Tree tree_;
    std::vector<Token> tokens_;
    bool is_set_ = false;  // the input, for the next decode
    std::vector<float> drafted_;
};

}  // namespace medusa::in_graph
