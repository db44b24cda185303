#include "draft_model/block_levels.h"

#include <algorithm>

#include "draft_model/levels.h"
#include "llama/state_readers.h"

namespace medusa {
namespace {

const std::vector<int> first_sequence{0};

// Committed tokens whose states are decoded as a part of a level's price: more of them wait only where few steps asked
// for drafts.
constexpr int most_beside_block = 7;

ContextParams sized_for(ContextParams params, int depth) {
    params.context_size += depth + 1;
    params.max_sequences = 1;
    params.max_outputs = depth + 1;
    params.next_layer = true;
    return params;
}

}  // namespace

BlockLevels::BlockLevels(std::shared_ptr<LlamaModel> model, const ContextParams& params, int depth,
                         const LlamaModel& target)
    : depth_(depth),
      vocab_size_(std::min(target.vocab_size(), model->vocab_size())),
      mask_(static_cast<Token>(model->file().get_u32("tokenizer.ggml.mask_token_id").value())),
      layers_(layers_read(model->file())),
      wide_(layers_.size() * static_cast<size_t>(target.embedding_size())),
      context_(std::move(model), sized_for(params, depth)),
      cache_(context_, 1) {}

DrafterNeeds BlockLevels::needs() const {
    DrafterNeeds needs;
    needs.hidden = needs.all_states = true;
    needs.layers = layers_;
    return needs;
}

// The next state is that of the token at `position`; none before it is in the cache.
void BlockLevels::start_at(int position) {
    context_.clear();
    cache_.forget();
    cache_.appended(position);
    count_ = position;
    waiting_states_.clear();
}

void BlockLevels::cut(int position) {
    count_ = std::min(count_, position);
    if (cache_.position() > position && (position < context_.shortest() || !cache_.truncate(position))) {
        return start_at(position);
    }
    waiting_states_.resize(static_cast<size_t>(waiting()) * wide_);
}

void BlockLevels::committed(int position, Token, std::span<const float> state) {
    if (position > count_) start_at(position);
    if (position < count_) return;
    waiting_states_.insert(waiting_states_.end(), state.begin(), state.end());
    ++count_;
    if (waiting() == context_.piece_size()) decode_waiting();
}

void BlockLevels::decode(std::span<const BatchRow> rows) {
    if (context_.decode(rows, nullptr) != DecodeStatus::ok) throw DraftsEnd("the drafter's context is full");
}

void BlockLevels::decode_waiting() {
    if (waiting() == 0) return;
    drop_block();
    std::vector<BatchRow> rows;
    for (int i = 0; i < waiting(); ++i) {
        const auto state = std::span(waiting_states_).subspan(static_cast<size_t>(i) * wide_, wide_);
        rows.push_back({no_token, cache_.position() + i, first_sequence, false, state});
    }
    decode(rows);
    cache_.appended(waiting());
    waiting_states_.clear();
}

void BlockLevels::begin(const DraftInput& input) {
    root_ = input.context.back();
    const int position = static_cast<int>(input.context.size()) - 1;
    position > count_ ? start_at(position) : cut(position);
    drop_block();
    if (waiting() > most_beside_block) decode_waiting();
}

void BlockLevels::decode_block() {
    decode_waiting();
    std::vector<BatchRow> rows;
    for (int i = 0; i <= depth_; ++i) {
        const Token token = i > 0 ? mask_ : root_ < context_.model().vocab_size() ? root_ : 0;
        rows.push_back({token, count_ + i, first_sequence, true});
    }
    decode(rows);
}

void BlockLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    out = {ranks, {}, {}};
    if (depth == 1) decode_block();
    LevelDrafts one{ranks, {}, {}};
    add_likeliest(context_.logits(depth).first(static_cast<size_t>(vocab_size_)), ranks, one);
    for (size_t path = 0; path < paths.size() / static_cast<size_t>(depth); ++path) {
        out.tokens.insert(out.tokens.end(), one.tokens.begin(), one.tokens.end());
        out.q.insert(out.q.end(), one.q.begin(), one.q.end());
    }
}

void BlockLevels::save(StateWriter& out) {
    decode_waiting();
    cut(count_);
    drop_block();
    out.number<int32_t>(count_);
    cache_.save(out);
}

void BlockLevels::restore(StateReader& in) {
    start_at(0);
    const int count = in.number<int32_t>();
    if (!cache_.restore(in) || cache_.position() != count || context_.end() != count) {
        start_at(0);
        throw Error("a saved cache is of another drafter");
    }
    count_ = count;
}

}  // namespace medusa
