#include "draft_model/pair_levels.h"

#include <algorithm>
#include <utility>

#include "draft_model/levels.h"
#include "llama/state_readers.h"

namespace medusa {
namespace {

const std::vector<int> first_sequence{0};

// Pairs of committed tokens that are decoded together with the root, as outputs like it: a tile of the kernels'
// columns.
constexpr size_t most_beside_root = 7;

ContextParams sized_for(const LlamaModel& model, ContextParams params, const TreeBounds& bounds, int depth,
                        bool all_states) {
    params.context_size += bounds.nodes * depth;
    params.max_sequences = bounds.leaves;
    params.max_outputs = all_states ? 1 : std::max({bounds.nodes, depth, static_cast<int>(most_beside_root) + 1});
    params.next_layer = true;
    params.next_states = all_states;
    params.states_alone = model.encodes_states();
    return params;
}

}  // namespace

PairLevels::Way PairLevels::way_of(const LlamaModel& model) {
    if (model.reads_other_cache()) return Way::shared;
    return model.has_layer_for_each_draft() ? Way::several : Way::repeated;
}

PairLevels::PairLevels(std::shared_ptr<LlamaModel> model, const ContextParams& params, const TreeBounds& bounds,
                       int depth, const LlamaModel& target, std::optional<int> draft_rows)
    : way_(way_of(*model)),
      depth_(depth),
      vocab_size_(std::min(target.vocab_size(), model->vocab_size())),
      layers_(model->encodes_states() ? layers_read(model->file()) : std::vector<int>()),
      first_(layers_.empty() ? 0 : 1),
      output_rows_(OutputRows::of(*model, target, draft_rows)),
      context_(model, sized_for(*model, params, bounds, depth, output_rows_ != nullptr)),
      cache_(context_, bounds.leaves),
      newest_(static_cast<size_t>(target.embedding_size()) * std::max<size_t>(layers_.size(), 1), 0.0f) {}

DrafterNeeds PairLevels::needs() const {
    DrafterNeeds needs;
    needs.hidden = needs.all_states = true;
    needs.next_states = layers_.empty();
    needs.layers = layers_;
    return needs;
}

// The next pair is at `position`; none before it is in the cache.
void PairLevels::start_at(int position) {
    count_ = position;
    if (way_ == Way::shared) return;
    context_.clear();
    cache_.forget();
    cache_.appended(position);
    waiting_.clear();
    waiting_states_.clear();
}

// Drops the pairs from `position` on.
void PairLevels::cut(int position) {
    count_ = std::min(count_, position);
    if (way_ == Way::shared) return;
    if (cache_.position() > position && (position < context_.shortest() || !cache_.truncate(position))) {
        return start_at(position);
    }
    const size_t left = static_cast<size_t>(count_ - std::min(cache_.position(), count_));
    waiting_.resize(std::min(waiting_.size(), left));
    waiting_states_.resize(waiting_.size() * wide());
}

void PairLevels::committed(int position, Token token, std::span<const float> state) {
    if (position != known_) std::ranges::fill(newest_, 0.0f);
    const int pair = position - first_;
    if (pair > count_) start_at(pair);
    if (pair == count_) {
        const bool is_root = cache_.position() == count_ + 1 && token == root_;
        if (!is_root && cache_.position() > count_) cut(pair);
        if (!is_root && way_ != Way::shared) {
            waiting_.push_back(known(token));
            waiting_states_.insert(waiting_states_.end(), newest_.begin(), newest_.end());
        }
        if (output_rows_) output_rows_->came(token);
        ++count_;
    }
    std::ranges::copy(state, newest_.begin());
    known_ = position + 1;
    if (waiting_.size() == static_cast<size_t>(context_.piece_size())) decode_waiting();
}

// A state that is not the newest one was not kept: its token has to be decoded again.
int PairLevels::resumes_at(int same) const {
    return count_ + first_ < same || known_ == same ? same : std::max(same - 1, 0);
}

void PairLevels::rolled_back(int position, int same) {
    cut(std::max(same - first_, 0));
    if (position == 0) {
        std::ranges::fill(newest_, 0.0f);
        known_ = 0;
    }
}

// What was decoded below the committed tokens.
void PairLevels::drop_drafts() {
    if (cache_.depth() > 0) {
        cache_.truncate(cache_.position());
    } else {
        context_.remove(0, cache_.position(), -1);
    }
}

void PairLevels::decode() {
    std::vector<BatchRow> rows = std::exchange(rows_, {});
    if (output_rows_) {
        for (BatchRow& row : rows) row.output = false;
    }
    // EAGLE-3's graph multiplies all rows by the output matrix, the others only outputs.
    const bool any = std::ranges::any_of(rows, &BatchRow::output);
    if (!layers_.empty() && !any) context_.end_at_states();
    const DecodeStatus status = context_.decode(rows, nullptr);
    if (status != DecodeStatus::ok) throw DraftsEnd("the drafter's context is full");
}

// As the layers read them: [n][wide] to [n][h].
std::vector<float> PairLevels::encoded(std::span<const float> states) {
    if (layers_.empty() || states.empty()) return {states.begin(), states.end()};
    return context_.encode(states, wide());
}

// states: before each of them, encoded.
void PairLevels::add_waiting(std::span<const float> states, bool outputs) {
    for (size_t i = 0; i < waiting_.size(); ++i) {
        const std::span<const float> state = states.subspan(i * width(), width());
        rows_.push_back({waiting_[i], cache_.position() + static_cast<int>(i), first_sequence, outputs, state});
    }
}

// Each of several layers has keys and values of its own in a cell: what is decoded by one, from `position` on, is
// decoded again by the next.
void PairLevels::use_layer(int layer, int position) {
    context_.remove(0, position, -1);
    context_.use_next_layer(layer);
}

void PairLevels::decode_waiting() {
    if (waiting_.empty()) return;
    drop_drafts();
    const int layers = way_ == Way::several ? depth_ : 1;
    const std::vector<float> states = encoded(waiting_states_);
    for (int layer = 0; layer < layers; ++layer) {
        if (way_ == Way::several) use_layer(layer, cache_.position());
        add_waiting(states, false);
        decode();
    }
    cache_.appended(static_cast<int>(waiting_.size()));
    waiting_.clear();
    waiting_states_.clear();
}

void PairLevels::begin(const DraftInput& input) {
    root_ = input.context.back();
    const int pair = static_cast<int>(input.context.size()) - 1 - first_;
    pair > count_ ? start_at(pair) : cut(std::max(pair, 0));
    if (way_ != Way::shared) drop_drafts();
    // Not part of what a level costs: many wait only where few steps asked for drafts.
    if (waiting_.size() > most_beside_root) decode_waiting();
}

// The newest decode's states, by which the next level is decoded: its buffer is then overwritten.
void PairLevels::keep_states(int rows) {
    if (way_ != Way::several) own_.clear();
    for (int row = first_row_; row < first_row_ + rows; ++row) {
        const std::span<const float> state = context_.next_state(row);
        own_.insert(own_.end(), state.begin(), state.end());
    }
}

void PairLevels::decode_root() {
    paths_.assign(1, root_);
    if (way_ == Way::several) {
        own_ = newest_;
        return decode_chain(paths_);
    }
    waiting_states_.insert(waiting_states_.end(), newest_.begin(), newest_.end());
    before_ = encoded(waiting_states_);
    add_waiting(before_, true);
    first_row_ = static_cast<int>(rows_.size());
    rows_.push_back({known(root_), count_, first_sequence, true, std::span(before_).last(width())});
    decode();
    if (way_ == Way::repeated) cache_.appended(first_row_ + 1);
    waiting_.clear();
    waiting_states_.clear();
    keep_states(1);
}

// The layer of the last token's level decodes the whole path; what follows the last token is what it drafts.
void PairLevels::decode_chain(std::span<const Token> path) {
    decode_waiting();
    const auto length = static_cast<int>(path.size());
    use_layer(length - 1, count_);
    for (int i = 0; i < length; ++i) {
        rows_.push_back(
            {known(path[i]), count_ + i, first_sequence, true, std::span(own_).subspan(i * width(), width())});
    }
    first_row_ = length - 1;
    decode();
    keep_states(1);
}

void PairLevels::decode_level(int depth, std::span<const Token> paths) {
    const auto length = static_cast<size_t>(depth);
    std::vector<int> parents;
    before_.clear();
    for (size_t at = 0; at < paths.size(); at += length) {
        parents.push_back(row_of(paths.subspan(at, length - 1), paths_));
        const auto state = own_.begin() + static_cast<std::ptrdiff_t>(parents.back() * width());
        before_.insert(before_.end(), state, state + static_cast<std::ptrdiff_t>(width()));
    }
    const bool shared = way_ == Way::shared;
    const std::span<const int> sequences = shared ? std::span<const int>() : cache_.branch(parents);
    const int position = shared ? count_ : cache_.position() + cache_.depth() - 1;
    for (size_t i = 0; i < parents.size(); ++i) {
        rows_.push_back({known(paths[(i + 1) * length - 1]), position,
                         shared ? first_sequence : sequences.subspan(i, 1), true,
                         std::span(before_).subspan(i * width(), width())});
    }
    first_row_ = 0;
    decode();
    keep_states(static_cast<int>(parents.size()));
    paths_.assign(paths.begin(), paths.end());
}

void PairLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    out = {ranks, {}, {}};
    if (depth == 1) {
        decode_root();
    } else if (way_ == Way::several) {
        decode_chain(paths);
    } else {
        decode_level(depth, paths);
    }
    if (output_rows_) return output_rows_->add_likeliest(own_, ranks, context_.thread_use().threads, out);
    const int rows = static_cast<int>(paths.size()) / depth;
    for (int row = 0; row < rows; ++row) {
        add_likeliest(context_.logits(first_row_ + row).first(static_cast<size_t>(vocab_size_)), ranks, out);
    }
}

void PairLevels::save(StateWriter& out) {
    decode_waiting();
    cut(count_);
    if (way_ != Way::shared) drop_drafts();
    out.number<int32_t>(count_);
    out.number<int32_t>(known_);
    out.list<float>(newest_);
    if (way_ != Way::shared) cache_.save(out);
}

void PairLevels::restore(StateReader& in) {
    start_at(0);
    const int count = in.number<int32_t>(), known = in.number<int32_t>();
    const std::vector<float> newest = in.list<float>();
    const bool own = way_ != Way::shared;
    const bool fits = newest.size() == wide() && (!own || cache_.restore(in));
    if (!fits || (own && (cache_.position() != count || context_.end() != count))) {
        rolled_back(0, 0);
        start_at(0);
        throw Error("a saved cache is of another drafter");
    }
    count_ = count;
    known_ = known;
    newest_ = newest;
}

}  // namespace medusa
