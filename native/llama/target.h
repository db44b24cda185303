// A llama.cpp model as the engine's target.
#pragma once

#include <memory>
#include <vector>

#include "decoding/sequence_memory.h"
#include "decoding/target.h"
#include "llama/context.h"

namespace medusa {

class LlamaTarget final : public Target, private GraphSteps {
  public:
    // `hidden`: rows carry hidden states, after params.tap_layers where there are any, or params.next_states. verify()
    // will get trees within `bounds`, or chains where the model is recurrent.
    LlamaTarget(std::shared_ptr<LlamaModel> model, ContextParams params, const TreeBounds& bounds, bool hidden);

    int vocab_size() const override { return context_->model().vocab_size(); }
    int context_size() const override { return context_->size(); }
    int position() const override { return memory_->position(); }
    int truncate(int count) override;
    DecodeStatus prefill(std::span<const Token> tokens, const StopPoll& stop,
                         const OnState& on_state = nullptr) override;
    // Outputs that a session needs room for if its drafter reads all states.
    static constexpr int state_rows = 64;
    DecodeStatus verify(const Tree& tree, std::span<const Token> tokens, const StopPoll& stop) override;
    void commit(const Tree& tree, const std::vector<int>& path) override;
    std::span<const float> logits(int row) override { return context_->logits(first_row_ + row); }
    std::span<const float> hidden(int row) override {
        const int of_batch = first_row_ + row;
        return tapped_ ? context_->tapped(of_batch)
               : next_ ? context_->next_state(of_batch)
                       : context_->hidden(of_batch);
    }
    GraphSteps* in_graph() override { return tail_ ? this : nullptr; }
    int reused_graphs() const { return context_->reused_graphs(); }
    // What the params' tail needs and does not find; empty: nothing.
    std::string tail_lacks() const { return context_->tail_lacks(); }

    const LlamaContext& context() const { return *context_; }
    // The context's.
    const AttentionTap* attention() const { return context_->attention(); }

    void discard() override;
    void save(StateWriter& out) override { memory_->save(out); }
    bool restore(StateReader& in) override;
    void hold_threads() { context_->hold_threads(); }
    ThreadUse thread_use() const override { return context_->thread_use(); }

  private:
    StepWay take_way(StepWay wanted) override { return way_ = context_->take_way(wanted); }
    bool pads() const override { return pads_ && way_ != StepWay::host; }
    std::optional<GreedyStep> greedy_step() const override { return greedy_step_; }
    std::span<const RankedToken> ranked(int row) override;
    Likeliest likeliest(int row) override;
    void forget();
    // How many prompt tokens can be decoded at once if the state of each is wanted.
    size_t states_at_once() const;
    void begin_rows();
    void add_rows(const Tree& tree, std::span<const Token> tokens);
    // `tree` in the form in which it is decoded.
    const Tree& decoded(const Tree& tree);
    DecodeStatus append_with_states(std::span<const Token> tokens, const StopPoll& stop, const OnState& on_state);
    DecodeStatus append_for_tail(std::span<const Token> tokens, const StopPoll& stop);
    // All of a prompt but its last token.
    DecodeStatus append_rest(std::span<const Token> rest, const StopPoll& stop, const OnState& on_state);
    DecodeStatus append_part(std::span<const Token> rest, const StopPoll& stop, const OnState& on_state);
    DecodeStatus append(std::span<const Token> tokens, bool output, const StopPoll& stop);
    void finish_decode(DecodeStatus status);

    std::unique_ptr<LlamaContext> context_;
    std::unique_ptr<SequenceMemory> memory_;
    int most_outputs_;
    const bool tapped_, next_;  // where hidden states come from: any row has them
    bool hidden_;               // after the final norm: if requested, every row of a batch is an output
    std::shared_ptr<GraphTail> tail_;
    StepWay way_ = StepWay::host;
    const bool pads_;
    std::optional<Tree> padded_;               // the newest tree, where it was decoded padded
    std::vector<std::vector<int>> sequences_;  // of its nodes, in libllama's order
    std::vector<Token> padded_tokens_;
    std::optional<GreedyStep> greedy_step_;
    std::vector<BatchRow> rows_;
    int first_row_ = 0;  // in the newest decode, after the pending tokens
};

}  // namespace medusa
