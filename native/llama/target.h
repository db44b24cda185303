// A llama.cpp model as the engine's target.
#pragma once

#include <memory>
#include <vector>

#include "decoding/sequence_memory.h"
#include "decoding/target.h"
#include "llama/context.h"

namespace medusa {

class LlamaTarget final : public Target {
  public:
    // `hidden`: rows carry hidden states. verify() will be given trees within `bounds`, chains where the model is
    // recurrent.
    LlamaTarget(std::shared_ptr<LlamaModel> model, ContextParams params, const TreeBounds& bounds, bool hidden);

    int vocab_size() const override { return context_->model().vocab_size(); }
    int context_size() const override { return context_->size(); }
    int position() const override { return memory_->position(); }
    int truncate(int count) override;
    DecodeStatus prefill(std::span<const Token> tokens, const StopPoll& stop,
                         const OnState& on_state = nullptr) override;
    // Outputs that a session needs room for whose drafter reads all states.
    static constexpr int state_rows = 64;
    DecodeStatus verify(const Tree& tree, std::span<const Token> tokens, const StopPoll& stop) override;
    void commit(const Tree& tree, const std::vector<int>& path) override;
    std::span<const float> logits(int row) override { return context_->logits(first_row_ + row); }
    std::span<const float> hidden(int row) override { return context_->hidden(first_row_ + row); }

    void discard() override;
    void hold_threads() { context_->hold_threads(); }
    ThreadUse thread_use() const override { return context_->thread_use(); }

  private:
    void forget();
    void begin_rows();
    DecodeStatus append_with_states(std::span<const Token> tokens, const StopPoll& stop, const OnState& on_state);
    DecodeStatus append(std::span<const Token> tokens, bool output, const StopPoll& stop);

    std::unique_ptr<LlamaContext> context_;
    std::unique_ptr<SequenceMemory> memory_;
    int most_outputs_;
    bool hidden_;
    std::vector<BatchRow> rows_;
    int first_row_ = 0;  // of the newest decode, behind the pending tokens
};

}  // namespace medusa
