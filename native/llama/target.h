// A llama.cpp model as the engine's target.
#pragma once

#include <memory>
#include <vector>

#include "decoding/target.h"
#include "decoding/tree_cache.h"
#include "llama/context.h"

namespace medusa {

class LlamaTarget final : public Target {
  public:
    // `hidden`: rows carry hidden states. verify() will be given trees within `bounds`.
    LlamaTarget(std::shared_ptr<LlamaModel> model, ContextParams params, const TreeBounds& bounds, bool hidden);

    int vocab_size() const override { return context_.model().vocab_size(); }
    int context_size() const override { return context_.size(); }
    int position() const override { return cache_.position(); }
    int truncate(int count) override;
    DecodeStatus prefill(std::span<const Token> tokens, const StopPoll& stop,
                         const OnState& on_state = nullptr) override;
    // Outputs that a session needs room for whose drafter reads all states.
    static constexpr int state_rows = 64;
    DecodeStatus verify(const Tree& tree, std::span<const Token> tokens, const StopPoll& stop) override;
    void commit(const Tree& tree, const std::vector<int>& path) override;
    std::span<const float> logits(int row) override { return context_.logits(row); }
    std::span<const float> hidden(int row) override { return context_.hidden(row); }
    bool accept_in_graph(bool wanted) override;
    std::optional<GreedyStep> greedy_step() const override { return greedy_step_; }
    int reused_graphs() const { return context_.reused_graphs(); }
    // What the tail of the params needs and is not there; empty: nothing.
    std::string tail_lacks() const { return context_.tail_lacks(); }

    void discard() override;

  private:
    void forget();
    DecodeStatus append_with_states(std::span<const Token> tokens, const StopPoll& stop, const OnState& on_state);
    DecodeStatus append(std::span<const Token> tokens, bool output, const StopPoll& stop);
    void finish_decode(DecodeStatus status);

    LlamaContext context_;
    TreeCache cache_;
    int most_outputs_;
    bool hidden_;  // asked for
    std::shared_ptr<GraphTail> tail_;
    bool in_graph_ = false;
    std::optional<GreedyStep> greedy_step_;
    std::vector<BatchRow> rows_;
};

}  // namespace medusa
