#include "llama/target.h"

#include <algorithm>

namespace medusa {
namespace {

const std::vector<int> first_sequence{0};

ContextParams sized_for(ContextParams params, const TreeBounds& bounds) {
    params.max_sequences = bounds.leaves;
    params.max_outputs = bounds.nodes;
    return params;
}

}  // namespace

LlamaTarget::LlamaTarget(std::shared_ptr<LlamaModel> model, ContextParams params, const TreeBounds& bounds, bool hidden)
    : context_(std::move(model), sized_for(params, bounds)),
      cache_(context_, bounds.leaves),
      most_outputs_(sized_for(params, bounds).max_outputs),
      tapped_(params.tap_layer.has_value()),
      hidden_(hidden && !tapped_) {}

int LlamaTarget::truncate(int count) {
    if (!cache_.truncate(count)) forget();
    return cache_.position();
}

void LlamaTarget::discard() {
    if (!cache_.rollback()) forget();
}

void LlamaTarget::forget() {
    context_.clear();
    cache_.forget();
}

DecodeStatus LlamaTarget::append(std::span<const Token> tokens, bool output, const StopPoll& stop) {
    rows_.clear();
    for (const Token token : tokens) {
        rows_.push_back({token, position() + static_cast<int>(rows_.size()), first_sequence, output});
    }
    const DecodeStatus status = context_.decode(rows_, stop);
    if (status == DecodeStatus::ok) {
        cache_.appended(static_cast<int>(tokens.size()));
    } else {
        discard();
    }
    return status;
}

// States after the final norm make each token an output, for which the context must have room.
size_t LlamaTarget::states_at_once() const {
    return static_cast<size_t>(tapped_ ? context_.batch_size() : most_outputs_);
}

DecodeStatus LlamaTarget::append_with_states(std::span<const Token> tokens, const StopPoll& stop,
                                             const OnState& on_state) {
    while (!tokens.empty()) {
        if (stop && stop()) return DecodeStatus::cancelled;
        const auto chunk = tokens.first(std::min(tokens.size(), states_at_once()));
        const int first = position();
        if (const DecodeStatus status = append(chunk, !tapped_, stop); status != DecodeStatus::ok) {
            return status;
        }
        for (int i = 0; i < static_cast<int>(chunk.size()); ++i) on_state(first + i, hidden(i));
        tokens = tokens.subspan(chunk.size());
    }
    return DecodeStatus::ok;
}

DecodeStatus LlamaTarget::prefill(std::span<const Token> tokens, const StopPoll& stop, const OnState& on_state) {
    // All but the last token without outputs: hidden states would make each of them pay for the output matrix.
    auto rest = tokens.first(tokens.size() - 1);
    DecodeStatus status = DecodeStatus::ok;
    if (on_state) {
        if (hidden_) context_.set_hidden(true);
        status = append_with_states(rest, stop, on_state);
        rest = {};
    }
    if (hidden_ && !rest.empty()) context_.set_hidden(false);
    while (!rest.empty() && status == DecodeStatus::ok) {
        if (stop && stop()) {
            status = DecodeStatus::cancelled;
            break;
        }
        const auto chunk = rest.first(std::min<size_t>(rest.size(), context_.batch_size()));
        status = append(chunk, false, stop);
        rest = rest.subspan(chunk.size());
    }
    if (hidden_) context_.set_hidden(true);
    if (status == DecodeStatus::ok) status = append(tokens.last(1), true, stop);
    context_.synchronize();
    if (status == DecodeStatus::ok && on_state) on_state(position() - 1, hidden(0));
    return status;
}

DecodeStatus LlamaTarget::verify(const Tree& tree, std::span<const Token> tokens, const StopPoll& stop) {
    cache_.prepare(tree);
    rows_.clear();
    for (int node = 0; node < tree.size(); ++node) {
        rows_.push_back({tokens[node], position() + tree.depth_of(node), tree.sequences(node), true});
    }
    const DecodeStatus status = context_.decode(rows_, stop);
    // Whoever times a verification must see the device's work, not its launch.
    context_.synchronize();
    if (status != DecodeStatus::ok) discard();
    return status;
}

void LlamaTarget::commit(const Tree& tree, const std::vector<int>& path) {
    cache_.commit(tree, path);
}

}  // namespace medusa
