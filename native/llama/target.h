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
    // `hidden`: rows carry hidden states, after params.tap_layer where there is one. verify() will be given trees
    // within `bounds`.
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
    std::span<const float> hidden(int row) override { return tapped_ ? context_.tapped(row) : context_.hidden(row); }

    void discard() override;

  private:
    void forget();
    // Tokens of a prompt that can be decoded at once where the state of each is wanted.
    size_t states_at_once() const;
    DecodeStatus append_with_states(std::span<const Token> tokens, const StopPoll& stop, const OnState& on_state);
    DecodeStatus append(std::span<const Token> tokens, bool output, const StopPoll& stop);

    LlamaContext context_;
    TreeCache cache_;
    int most_outputs_;
    const bool tapped_;
    bool hidden_;  // after the final norm: asked for, every row of a batch is an output
    std::vector<BatchRow> rows_;
};

}  // namespace medusa
