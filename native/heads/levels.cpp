#include "heads/levels.h"

#include <algorithm>

#include "decoding/sampler.h"
#include "heads/hydra_levels.h"
#include "heads/medusa_levels.h"
#include "heads/stream_levels.h"

namespace medusa {

void top_rows(std::span<const float> p, int ranks, std::vector<int>& rows) {
    top_indices(p, ranks, rows);
    // Heads full of NaN rank nothing: any distinct rows will do, they are verified like all others.
    for (int row = 0; rows.size() < static_cast<size_t>(ranks); ++row) {
        if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    }
}

DrafterNeeds needs_of(const Heads& heads) {
    const HeadsMetadata& metadata = heads.metadata();
    DrafterNeeds needs{.hidden = true};
    // The prefix layer attends to the states of all tokens.
    needs.all_states = metadata.has_prefix && !metadata.prefix.from_answer;
    if (metadata.layers_above_input > 0) {
        needs.attention = heads.streams() != nullptr;
        needs.layer = heads.model().layer_count() - 1 - metadata.layers_above_input;
    }
    return needs;
}

HeadsLevels::HeadsLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads,
                         std::shared_ptr<PrefixCache> cache)
    : heads_(std::move(heads)), depth_(depth), backend_(start_backend(*heads_)), threads_(std::move(threads)) {
    if (!heads_->metadata().has_prefix) return;
    prefix_ = std::make_unique<PrefixLayer>(heads_, backend_.get(), std::move(cache));
}

void HeadsLevels::settle() {
    if (prefix_) prefix_->settle();
}

void HeadsLevels::committed(int position, std::span<const float> state) {
    if (prefix_) prefix_->append(position, state);
}

void HeadsLevels::rolled_back(int position) {
    if (prefix_) prefix_->roll_back(position);
}

std::span<const float> HeadsLevels::state_of(const DraftInput& input) {
    return prefix_ ? prefix_->newest() : input.hidden;
}

void HeadsLevels::begin(const DraftInput& input) {
    set_threads(backend_.get(), threads_());
    begin_step(input);
}

void HeadsLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    const auto width = static_cast<size_t>(heads_->output_rows());
    const auto p = probabilities(depth, paths);
    out.ranks = ranks;
    out.tokens.clear();
    out.q.clear();
    for (size_t node = 0; node < paths.size() / static_cast<size_t>(depth); ++node) {
        const auto row_p = p.subspan(node * width < p.size() ? node * width : 0, width);
        if (node * width < p.size()) top_rows(row_p, ranks, rows_);
        for (const int row : rows_) {
            out.tokens.push_back(heads_->token(row));
            out.q.push_back(row_p[static_cast<size_t>(row)]);
        }
    }
}

std::unique_ptr<HeadsLevels> make_levels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads,
                                         const AttentionTap* attention, std::shared_ptr<PrefixCache> cache) {
    if (heads->streams()) {
        if (!attention) throw Error("streams read what their base attends to: ask them within a session");
        return std::make_unique<StreamLevels>(std::move(heads), depth, std::move(threads), *attention);
    }
    if (heads->metadata().reads_path())
        return std::make_unique<HydraLevels>(std::move(heads), depth, std::move(threads), std::move(cache));
    return std::make_unique<MedusaLevels>(std::move(heads), depth, std::move(threads), std::move(cache));
}

}  // namespace medusa
