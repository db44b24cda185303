#include "in_graph/hydra_drafts.h"

#include <algorithm>

#include "heads/hydra_levels.h"
#include "in_graph/beam.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {
HydraDrafts::HydraDrafts(std::shared_ptr<Heads> heads, const DraftShape& shape, std::unique_ptr<Prefix> prefix)
    : Drafts(std::move(prefix)), heads_(std::move(heads)), embeddings_(*heads_) {
    std::visit([this](const auto& wanted) { plan(wanted); }, shape);
    upload();
}

// Columns in the order in which a drafter asks for them: that of the first child of each.
void HydraDrafts::plan(const Tree& shape) {
    std::vector<int> column(static_cast<size_t>(shape.size()), -1);
    const auto depth = static_cast<size_t>(shape.depth());
    columns_.resize(depth);
    levels_.assign(depth, {0, 1});
    for (int node = 1; node < shape.size(); ++node) {
        const auto at = static_cast<size_t>(shape.depth_of(node) - 1);
        levels_[at].ranks = std::max(levels_[at].ranks, shape.rank(node) + 1);
        const int parent = shape.parent(node);
        if (column[parent] >= 0) continue;
        column[parent] = levels_[at].columns++;
        if (at == 0) continue;
        const int above = column[shape.parent(parent)];
        columns_[at].above.push_back(above);
        columns_[at].places.push_back(above * levels_[at - 1].ranks + shape.rank(parent));
    }
}

// As wide as wanted, where what is brought to the host stays small.
void HydraDrafts::plan(const GrownShape& shape) {
    grown_ = true;
    int brought = 0, width = shape.width;
    do {
        levels_.assign(1, {1, shape.ranks});
        brought = 2 * shape.ranks;
        while (levels_.size() < static_cast<size_t>(shape.depth)) {
            levels_.push_back({std::min(width, levels_.back().size()), shape.ranks});
            brought += 2 * levels_.back().size() + levels_.back().columns;
        }
    } while (brought > shape.most && --width > 0);
}

void HydraDrafts::upload() {
    std::vector<std::pair<ggml_tensor*, const std::vector<int32_t>*>> uploads;
    context_.reset(ggml_init({(2 * columns_.size() + 1) * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    const auto declare = [&](const std::vector<int32_t>& numbers, int64_t columns, int64_t rows) {
        if (numbers.empty()) return static_cast<ggml_tensor*>(nullptr);
        uploads.emplace_back(ggml_new_tensor_2d(context_.get(), GGML_TYPE_I32, columns, rows), &numbers);
        return uploads.back().first;
    };
    for (Columns& level : columns_) {
        const auto count = static_cast<int64_t>(level.places.size());
        level.places_there = declare(level.places, count, 1);
        level.above_there = declare(level.above, count, 1);
    }
    const std::vector<Token>& d2t = heads_->metadata().d2t;
    token_of_row_ = declare(d2t, 1, static_cast<int64_t>(d2t.size()));
    if (uploads.empty()) return;
    buffer_.reset(
        ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(heads_->device())));
    if (!buffer_) throw OutOfMemory("no memory for the shape of the tree on the device");
    for (const auto& [tensor, numbers] : uploads) {
        ggml_backend_tensor_set(tensor, numbers->data(), 0, numbers->size() * sizeof(int32_t));
    }
}

// Rows of the output matrices [n] -> tokens of the base, I32.
ggml_tensor* HydraDrafts::tokens_of(ggml_context* c, ggml_tensor* rows) const {
    ggml_tensor* indices = as_index(c, rows, heads_->output_rows());
    if (!token_of_row_) return indices;
    return ggml_reshape_1d(c, ggml_get_rows(c, token_of_row_, indices), rows->ne[0]);
}

ggml_tensor* HydraDrafts::build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) {
    ggml_tensor* root_token = as_index(c, accepted.next, heads_->model().vocab_size());
    ggml_tensor* paths = ggml_concat(c, state(c, states, accepted), embeddings_.rows(c, root_token), 0);
    return grown_ ? build_grown(c, paths) : build_fixed(c, paths);
}

// Paths [h * (depth + 1), columns] of a level: those `above`, each with one of the candidates behind it.
ggml_tensor* HydraDrafts::lengthened(ggml_context* c, ggml_tensor* paths, ggml_tensor* above, ggml_tensor* candidates,
                                     ggml_tensor* places) const {
    ggml_tensor* rows = ggml_get_rows(c, ggml_reshape_2d(c, candidates, 1, candidates->ne[0]), places);
    ggml_tensor* tokens = tokens_of(c, ggml_reshape_1d(c, rows, places->ne[0]));
    return ggml_concat(c, ggml_get_rows(c, paths, above), embeddings_.rows(c, tokens), 0);
}

ggml_tensor* HydraDrafts::build_fixed(ggml_context* c, ggml_tensor* paths) {
    ggml_tensor *candidates = nullptr, *all = nullptr;
    for (size_t at = 0; at < levels_.size(); ++at) {
        const Columns& columns = columns_[at];
        if (at > 0) paths = lengthened(c, paths, columns.above_there, candidates, columns.places_there);
        ggml_tensor* logits = hydra_logits(c, *heads_, static_cast<int>(at), paths);
        candidates = ggml_reshape_1d(c, largest(c, logits, levels_[at].ranks), levels_[at].size());
        all = all ? ggml_concat(c, all, candidates, 0) : candidates;
    }
    return all;
}

ggml_tensor* HydraDrafts::build_grown(ggml_context* c, ggml_tensor* paths) {
    Beam beam;
    ggml_tensor *candidates = nullptr, *all = nullptr;
    for (size_t at = 0; at < levels_.size(); ++at) {
        if (at > 0) {
            const Beam::Columns columns = beam.choose(c, levels_[at].columns);
            paths = lengthened(c, paths, columns.above, candidates, columns.places);
        }
        ggml_tensor* logits = hydra_logits(c, *heads_, static_cast<int>(at), paths);
        candidates = beam.candidates(c, logits, levels_[at].ranks);
        all = all ? ggml_concat(c, all, candidates, 0) : candidates;
    }
    return ggml_concat(c, all, beam.brought(c), 0);
}

ggml_tensor* HydraDrafts::level_logits(ggml_context* c, ggml_tensor* state, int depth, ggml_tensor* paths) {
    const int64_t h = state->ne[0], columns = paths->ne[0] / depth;
    ggml_tensor* tokens = ggml_reshape_2d(c, embeddings_.rows(c, paths), h * depth, columns);
    ggml_tensor* states = ggml_repeat_4d(c, state, h, columns, 1, 1);
    return hydra_logits(c, *heads_, depth - 1, ggml_concat(c, states, tokens, 0));
}

size_t HydraDrafts::most_tensors() const {
    return 16 + state_tensors + levels_.size() * (32 + beam_tensors + largest_tensors + hydra_tensors(*heads_));
}

}  // namespace medusa::in_graph
