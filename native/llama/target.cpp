#include "llama/target.h"

#include <algorithm>
#include <unordered_set>

#include "decoding/sequence_memory.h"

namespace medusa {
namespace {

const std::vector<int> first_sequence{0};

// Accepted tokens waiting to be decoded again (SequenceMemory::pending) are decoded by themselves when there are more:
// after them, a draft would cost another tile of the kernels' eight columns.
constexpr int most_pending = 8;

ContextParams sized_for(ContextParams params, const TreeBounds& bounds) {
    const bool padded = params.tail && params.pads;
    const int nodes = padded ? padded_size(bounds.nodes) : bounds.nodes;
    params.max_sequences = padded ? nodes : bounds.leaves;
    params.max_outputs = std::max(params.max_outputs, nodes);
    return params;
}

// A context for chains: one that can step back by a whole draft, or else one with a second sequence for a copy.
std::unique_ptr<LlamaContext> chain_context(const std::shared_ptr<LlamaModel>& model, ContextParams params,
                                            const TreeBounds& bounds) {
    params = sized_for(params, bounds);
    params.snapshots = bounds.nodes - 1;
    auto context = std::make_unique<LlamaContext>(model, params);
    if (bounds.nodes == 1 || context->snapshots() > 0) return context;
    context.reset();
    params.snapshots = 0;
    params.max_sequences = 2;
    params.max_outputs += most_pending;
    return std::make_unique<LlamaContext>(model, params);
}

int first_of(const std::vector<int>& inserted) {
    std::unordered_set<int> set;
    for (const int sequence : inserted) set.insert(sequence);
    return *set.begin();
}

// How many buckets a set of this size has.
size_t buckets_of(size_t count) {
    std::unordered_set<int> set;
    for (int i = 0; i < static_cast<int>(count); ++i) set.insert(i);
    return set.bucket_count();
}

// The same sequences, ordered so that libllama sees `first`, one of them, as the first: it puts them into a hash set,
// from this same standard library, and takes the first element. If that fails, a graph is built again, nothing worse:
// any of a token's sequences gives the same result.
//
// A set is a list in which a new entry comes first, but after the one that its bucket hangs on: so the entries of that
// bucket go last, unless the list is reversed at the end, when the set grows.
std::vector<int> with_first(const std::vector<int>& sequences, int first) {
    std::vector<int> order;
    if (sequences.size() == 1) return sequences;
    const size_t buckets = buckets_of(sequences.size());
    const auto shares = [&](int sequence) {
        return static_cast<size_t>(sequence) % buckets == static_cast<size_t>(first) % buckets;
    };
    for (const int sequence : sequences) {
        if (sequence != first) order.push_back(sequence);
    }
    std::stable_partition(order.begin(), order.end(), [&](int sequence) { return !shares(sequence); });
    order.push_back(first);
    if (first_of(order) == first) return order;
    std::stable_partition(order.begin(), order.end() - 1, shares);
    if (first_of(order) == first) return order;
    std::rotate(order.begin(), order.end() - 1, order.end());
    return order;
}

}  // namespace

LlamaTarget::LlamaTarget(std::shared_ptr<LlamaModel> model, ContextParams params, const TreeBounds& bounds, bool hidden)
    : most_outputs_(sized_for(params, bounds).max_outputs),
      tapped_(!params.tap_layers.empty()),
      next_(params.next_states),
      hidden_(hidden && !tapped_ && !next_),
      pads_(params.tail && params.pads) {
    if (model->is_recurrent()) {
        context_ = chain_context(model, params, bounds);
        memory_ = std::make_unique<ChainMemory>(*context_, context_->snapshots());
    } else {
        context_ = std::make_unique<LlamaContext>(std::move(model), sized_for(params, bounds));
        memory_ = std::make_unique<TreeCache>(*context_, sized_for(params, bounds).max_sequences);
    }
    way_ = context_->take_way(StepWay::greedy);
    tail_ = way_ != StepWay::host ? params.tail : nullptr;
}

std::span<const RankedToken> LlamaTarget::ranked(int row) {
    if (way_ != StepWay::ranked) return {};
    return tail_->ranked(row);
}

Likeliest LlamaTarget::likeliest(int row) {
    if (way_ == StepWay::host) return {};
    return tail_->likeliest(row);
}

int LlamaTarget::truncate(int count) {
    if (count == 0 || !memory_->truncate(count)) forget();
    return memory_->position();
}

void LlamaTarget::discard() {
    if (!memory_->rollback()) forget();
}

bool LlamaTarget::restore(StateReader& in) {
    forget();
    return memory_->restore(in) && context_->end() == position() - static_cast<int>(memory_->pending().size());
}

void LlamaTarget::forget() {
    context_->clear();
    memory_->forget();
}

void LlamaTarget::begin_rows() {
    rows_.clear();
    const auto pending = memory_->pending();
    first_row_ = static_cast<int>(pending.size());
    for (int i = 0; i < first_row_; ++i)
        rows_.push_back({pending[i], position() - first_row_ + i, first_sequence, false});
}

DecodeStatus LlamaTarget::append(std::span<const Token> tokens, bool output, const StopPoll& stop) {
    begin_rows();
    const auto count = static_cast<int>(tokens.size());
    for (int i = 0; i < count; ++i) rows_.push_back({tokens[i], position() + i, first_sequence, output});
    const DecodeStatus status = context_->decode(rows_, stop);
    if (status == DecodeStatus::ok) {
        memory_->appended(count);
    } else {
        discard();
    }
    return status;
}

// States after the final norm make each token an output, and the context must have room for it.
size_t LlamaTarget::states_at_once() const {
    return static_cast<size_t>(tapped_ || next_ ? context_->piece_size() : most_outputs_);
}

DecodeStatus LlamaTarget::append_with_states(std::span<const Token> tokens, const StopPoll& stop,
                                             const OnState& on_state) {
    while (!tokens.empty()) {
        if (stop && stop()) return DecodeStatus::cancelled;
        const auto chunk = tokens.first(std::min(tokens.size(), states_at_once()));
        const int first = position();
        const bool final = !tapped_ && !next_;
        if (final) context_->end_at_states();
        if (const DecodeStatus status = append(chunk, final, stop); status != DecodeStatus::ok) {
            return status;
        }
        for (int i = 0; i < static_cast<int>(chunk.size()); ++i) on_state(first + i, hidden(i));
        tokens = tokens.subspan(chunk.size());
    }
    return DecodeStatus::ok;
}

// For a tail that keeps what it needs from the states.
DecodeStatus LlamaTarget::append_for_tail(std::span<const Token> tokens, const StopPoll& stop) {
    while (!tokens.empty()) {
        if (stop && stop()) return DecodeStatus::cancelled;
        const auto chunk = tokens.first(std::min(tokens.size(), static_cast<size_t>(most_outputs_)));
        tail_->begin_prompt(static_cast<int>(chunk.size()), position());
        if (const DecodeStatus status = append(chunk, true, stop); status != DecodeStatus::ok) return status;
        tail_->end_prompt();
        tokens = tokens.subspan(chunk.size());
    }
    return DecodeStatus::ok;
}

DecodeStatus LlamaTarget::append_rest(std::span<const Token> rest, const StopPoll& stop, const OnState& on_state) {
    const int end = position() + static_cast<int>(rest.size());
    while (position() < end) {
        const auto part = static_cast<size_t>(memory_->next_keep(end) - position());
        if (const DecodeStatus status = append_part(rest.first(part), stop, on_state); status != DecodeStatus::ok) {
            return status;
        }
        if (position() < end) memory_->keep();
        rest = rest.subspan(part);
    }
    return DecodeStatus::ok;
}

DecodeStatus LlamaTarget::append_part(std::span<const Token> rest, const StopPoll& stop, const OnState& on_state) {
    if (on_state) {
        if (hidden_) context_->set_hidden(true);
        return append_with_states(rest, stop, on_state);
    }
    // Without outputs: with hidden states, each token would pay for the output matrix.
    if (hidden_ && !rest.empty()) context_->set_hidden(false);
    if (way_ != StepWay::host && tail_->reads_prompt()) return append_for_tail(rest, stop);
    while (!rest.empty()) {
        if (stop && stop()) return DecodeStatus::cancelled;
        const auto chunk = rest.first(std::min<size_t>(rest.size(), context_->piece_size()));
        if (const DecodeStatus status = append(chunk, false, stop); status != DecodeStatus::ok) return status;
        rest = rest.subspan(chunk.size());
    }
    return DecodeStatus::ok;
}

DecodeStatus LlamaTarget::prefill(std::span<const Token> tokens, const StopPoll& stop, const OnState& on_state) {
    context_->begin_answer();
    DecodeStatus status = append_rest(tokens.first(tokens.size() - 1), stop, on_state);
    if (hidden_) context_->set_hidden(way_ == StepWay::host);
    if (status == DecodeStatus::ok) {
        if (way_ != StepWay::host) tail_->begin(Tree(), tokens.last(1), position());
        status = append(tokens.last(1), true, stop);
    }
    finish_decode(status);
    if (status == DecodeStatus::ok && way_ != StepWay::host) tail_->accepted(0);
    if (status == DecodeStatus::ok && on_state) on_state(position() - 1, hidden(0));
    return status;
}

const Tree& LlamaTarget::decoded(const Tree& tree) {
    padded_.reset();
    const int size = padded_size(tree.size());
    if (!pads() || position() + size > context_->size()) return tree;
    padded_ = padded(tree, size);
    return *padded_;
}

void LlamaTarget::add_rows(const Tree& tree, std::span<const Token> tokens) {
    memory_->prepare(tree, tokens);
    begin_rows();
    sequences_.resize(static_cast<size_t>(tree.size()));
    padded_tokens_.assign(tokens.begin(), tokens.end());
    padded_tokens_.resize(static_cast<size_t>(tree.size()), no_token);
    for (int node = 0; node < tree.size(); ++node) {
        std::vector<int>& sequences = sequences_[static_cast<size_t>(node)];
        sequences = padded_ ? with_first(tree.sequences(node), node) : tree.sequences(node);
        const Token token = padded_tokens_[static_cast<size_t>(node)];
        rows_.push_back({std::max(token, Token{0}), position() + tree.depth_of(node), sequences, true});
    }
    if (way_ != StepWay::host) tail_->begin(tree, padded_tokens_, position());
}

DecodeStatus LlamaTarget::verify(const Tree& tree, std::span<const Token> tokens, const StopPoll& stop) {
    if (memory_->pending().size() > most_pending) {
        if (const DecodeStatus status = append({}, false, stop); status != DecodeStatus::ok) return status;
    }
    add_rows(decoded(tree), tokens);
    const DecodeStatus status = context_->decode(rows_, stop);
    finish_decode(status);
    if (status != DecodeStatus::ok) discard();
    return status;
}

// Timing a decode must cover the device's work, not just its launch.
void LlamaTarget::finish_decode(DecodeStatus status) {
    context_->synchronize();
    greedy_step_.reset();
    if (way_ != StepWay::host && status == DecodeStatus::ok) greedy_step_ = tail_->end(context_->found());
}

void LlamaTarget::commit(const Tree& tree, const std::vector<int>& path) {
    if (way_ != StepWay::host) tail_->accepted(path.back());
    memory_->commit(padded_ ? *padded_ : tree, path);
}

}  // namespace medusa
