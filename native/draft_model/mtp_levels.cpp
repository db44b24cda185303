#include "draft_model/mtp_levels.h"

#include <algorithm>
#include <utility>

#include "draft_model/levels.h"

namespace medusa {
namespace {

const std::vector<int> first_sequence{0};

// Pairs of committed tokens that are decoded together with the root, as outputs like it: a tile of the kernels'
// columns.
constexpr size_t most_beside_root = 7;

ContextParams sized_for(ContextParams params, const TreeBounds& bounds, int depth) {
    params.context_size += bounds.nodes * depth;
    params.max_sequences = bounds.leaves;
    params.max_outputs = std::max({bounds.nodes, depth, static_cast<int>(most_beside_root) + 1});
    params.next_layer = true;
    return params;
}

}  // namespace

MtpLevels::Way MtpLevels::way_of(const LlamaModel& model) {
    if (model.reads_other_cache()) return Way::shared;
    return model.next_layers() > 1 ? Way::several : Way::repeated;
}

MtpLevels::MtpLevels(std::shared_ptr<LlamaModel> model, const ContextParams& params, const TreeBounds& bounds,
                     int depth, int vocab_size)
    : way_(way_of(*model)),
      depth_(depth),
      vocab_size_(std::min(vocab_size, model->vocab_size())),
      context_(model, sized_for(params, bounds, depth)),
      cache_(context_, bounds.leaves),
      newest_(static_cast<size_t>(model->embedding_size()), 0.0f) {}

DrafterNeeds MtpLevels::needs() const {
    DrafterNeeds needs;
    needs.hidden = needs.next_states = needs.all_states = true;
    return needs;
}

// The next pair is that of the token at `position`; nothing before it is in the cache.
void MtpLevels::start_at(int position) {
    count_ = position;
    if (way_ == Way::shared) return;
    context_.clear();
    cache_.forget();
    cache_.appended(position);
    waiting_.clear();
    waiting_states_.clear();
}

// Drops the pairs from `position` on.
void MtpLevels::cut(int position) {
    count_ = std::min(count_, position);
    if (way_ == Way::shared) return;
    if (cache_.position() > position && (position < context_.shortest() || !cache_.truncate(position))) {
        return start_at(position);
    }
    const size_t left = static_cast<size_t>(count_ - std::min(cache_.position(), count_));
    waiting_.resize(std::min(waiting_.size(), left));
    waiting_states_.resize(waiting_.size() * width());
}

void MtpLevels::committed(int position, Token token, std::span<const float> state) {
    if (position != known_) std::ranges::fill(newest_, 0.0f);
    if (position > count_) start_at(position);
    if (position == count_) {
        const bool is_root = cache_.position() == count_ + 1 && token == root_;
        if (!is_root && cache_.position() > count_) cut(position);
        if (!is_root && way_ != Way::shared) {
            waiting_.push_back(known(token));
            waiting_states_.insert(waiting_states_.end(), newest_.begin(), newest_.end());
        }
        ++count_;
    }
    std::ranges::copy(state, newest_.begin());
    known_ = position + 1;
    if (waiting_.size() == static_cast<size_t>(context_.piece_size())) decode_waiting();
}

// A state that is not the newest one was not kept: its token has to be decoded again.
int MtpLevels::resumes_at(int same) const {
    return count_ < same || known_ == same ? same : std::max(same - 1, 0);
}

void MtpLevels::rolled_back(int position, int same) {
    cut(same);
    if (position == 0) {
        std::ranges::fill(newest_, 0.0f);
        known_ = 0;
    }
}

// What was decoded below the committed tokens.
void MtpLevels::drop_drafts() {
    if (cache_.depth() > 0) {
        cache_.truncate(cache_.position());
    } else {
        context_.remove(0, cache_.position(), -1);
    }
}

void MtpLevels::decode() {
    const std::vector<BatchRow> rows = std::exchange(rows_, {});
    const DecodeStatus status = context_.decode(rows, nullptr);
    if (status != DecodeStatus::ok) throw DraftsEnd("the drafter's context is full");
}

void MtpLevels::add_waiting(bool outputs) {
    for (size_t i = 0; i < waiting_.size(); ++i) {
        const std::span<const float> state = std::span(waiting_states_).subspan(i * width(), width());
        rows_.push_back({waiting_[i], cache_.position() + static_cast<int>(i), first_sequence, outputs, state});
    }
}

// Each of several layers has keys and values of its own in a cell: what is decoded by one, from `position` on, is
// decoded again by the next.
void MtpLevels::use_layer(int layer, int position) {
    context_.remove(0, position, -1);
    context_.use_next_layer(layer);
}

void MtpLevels::decode_waiting() {
    if (waiting_.empty()) return;
    drop_drafts();
    const int layers = way_ == Way::several ? depth_ : 1;
    for (int layer = 0; layer < layers; ++layer) {
        if (way_ == Way::several) use_layer(layer, cache_.position());
        add_waiting(false);
        decode();
    }
    cache_.appended(static_cast<int>(waiting_.size()));
    waiting_.clear();
    waiting_states_.clear();
}

void MtpLevels::begin(const DraftInput& input) {
    root_ = input.context.back();
    const int position = static_cast<int>(input.context.size()) - 1;
    position > count_ ? start_at(position) : cut(position);
    if (way_ != Way::shared) drop_drafts();
    // Not part of what a level costs: many wait only where few steps asked for drafts.
    if (waiting_.size() > most_beside_root) decode_waiting();
}

// The newest decode's states, by which the next level is decoded: its buffer is then overwritten.
void MtpLevels::keep_states(int rows) {
    if (way_ != Way::several) own_.clear();
    for (int row = first_row_; row < first_row_ + rows; ++row) {
        const std::span<const float> state = context_.next_state(row);
        own_.insert(own_.end(), state.begin(), state.end());
    }
}

void MtpLevels::decode_root() {
    paths_.assign(1, root_);
    own_ = newest_;
    if (way_ == Way::several) return decode_chain(paths_);
    add_waiting(true);
    first_row_ = static_cast<int>(rows_.size());
    rows_.push_back({known(root_), count_, first_sequence, true, newest_});
    decode();
    if (way_ == Way::repeated) cache_.appended(first_row_ + 1);
    waiting_.clear();
    waiting_states_.clear();
    keep_states(1);
}

// The layer of the last token's level decodes the whole path; what follows the last token is what it drafts.
void MtpLevels::decode_chain(std::span<const Token> path) {
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

void MtpLevels::decode_level(int depth, std::span<const Token> paths) {
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

void MtpLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    out = {ranks, {}, {}};
    if (depth == 1) {
        decode_root();
    } else if (way_ == Way::several) {
        decode_chain(paths);
    } else {
        decode_level(depth, paths);
    }
    const int rows = static_cast<int>(paths.size()) / depth;
    for (int row = 0; row < rows; ++row) {
        add_likeliest(context_.logits(first_row_ + row).first(static_cast<size_t>(vocab_size_)), ranks, out);
    }
}

void MtpLevels::save(StateWriter& out) {
    decode_waiting();
    cut(count_);
    if (way_ != Way::shared) drop_drafts();
    out.number<int32_t>(count_);
    out.number<int32_t>(known_);
    out.list<float>(newest_);
    if (way_ != Way::shared) cache_.save(out);
}

void MtpLevels::restore(StateReader& in) {
    start_at(0);
    const int count = in.number<int32_t>(), known = in.number<int32_t>();
    const std::vector<float> newest = in.list<float>();
    const bool own = way_ != Way::shared;
    const bool fits = newest.size() == width() && (!own || cache_.restore(in));
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
