#include "heads/levels.h"

#include <algorithm>
#include <map>

#include "decoding/sampler.h"
#include "heads/recurrent_levels.h"
#include "heads/stream_levels.h"
#include "heads/token_embeddings.h"

namespace medusa {

void top_rows(std::span<const float> p, int ranks, std::vector<int>& rows) {
    top_indices(p, ranks, rows);
    // Heads full of NaN rank nothing: any distinct rows will do, since they are verified like all others.
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
        needs.layers = {heads.model().layer_count() - 1 - metadata.layers_above_input};
    }
    return needs;
}

HeadsLevels::HeadsLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads,
                         std::shared_ptr<PrefixCache> cache)
    : heads_(std::move(heads)), depth_(depth), backend_(start_backend(heads_->device())), threads_(std::move(threads)) {
    if (!heads_->metadata().has_prefix) return;
    prefix_ = std::make_unique<PrefixLayer>(heads_, backend_.get(), std::move(cache));
}

void HeadsLevels::settle() {
    if (prefix_) prefix_->settle();
}

void HeadsLevels::committed(int position, Token token, std::span<const float> state) {
    if (prefix_) prefix_->append(position, state);
}

void HeadsLevels::rolled_back(int position, int same) {
    if (prefix_) prefix_->roll_back(position);
}

void HeadsLevels::save(StateWriter& out) {
    if (!prefix_) return;
    set_threads(backend_.get(), threads_());
    prefix_->save(out);
}

void HeadsLevels::restore(StateReader& in) {
    if (prefix_) prefix_->restore(in);
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

namespace {

// Evaluates the first `depth` heads at one hidden state: one ggml graph, built once, which reads the lm_head once for
// all heads that share it.
class MedusaLevels final : public HeadsLevels {
  public:
    MedusaLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads, std::shared_ptr<PrefixCache> cache)
        : HeadsLevels(std::move(heads), depth, std::move(threads), std::move(cache)),
          graph_(backend_.get(), medusa_tensors(*heads_, depth)),
          input_(graph_.new_input(heads_->model().embedding_size(), 1)) {
        graph_.finish(ggml_soft_max(graph_.context(), medusa_logits(graph_.context(), *heads_, input_, depth)));
    }

    // The candidates are the same below every node: one row.
    std::span<const float> probabilities(int depth, std::span<const Token>) override {
        const auto width = static_cast<size_t>(heads_->output_rows());
        return output_.subspan(static_cast<size_t>(depth - 1) * width, width);
    }

  private:
    void begin_step(const DraftInput& input) override {
        DeviceGraph::set(input_, state_of(input));
        output_ = graph_.compute();
    }

    DeviceGraph graph_;
    ggml_tensor* input_;
    std::span<const float> output_;  // [depth][output_rows]
};

// Evaluates a head at the expanded nodes, all nodes of a level with one read of its weights and of the lm_head. Graphs
// are kept by depth and number of nodes.
class HydraLevels final : public HeadsLevels {
  public:
    HydraLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads, std::shared_ptr<PrefixCache> cache)
        : HeadsLevels(std::move(heads), depth, std::move(threads), std::move(cache)),
          embeddings_(heads_->model(), heads_->metadata().embedding_scale) {}

    std::span<const float> probabilities(int depth, std::span<const Token> paths) override {
        const size_t h = hidden_.size(), length = static_cast<size_t>(depth), nodes = paths.size() / length;
        Level& level = level_for(depth, nodes);
        values_.resize(static_cast<size_t>(ggml_nelements(level.input)));
        const auto part = [&](size_t node, size_t i) {
            return std::span(values_).subspan((node * (length + 1) + i) * h, h);
        };
        for (size_t node = 0; node < nodes; ++node) {
            std::copy(hidden_.begin(), hidden_.end(), part(node, 0).begin());
            for (size_t i = 0; i < length; ++i) embeddings_.row(paths[node * length + i], part(node, i + 1));
        }
        DeviceGraph::set(level.input, values_);
        return level.graph.compute().first(nodes * static_cast<size_t>(heads_->output_rows()));
    }

  private:
    void begin_step(const DraftInput& input) override {
        const auto state = state_of(input);
        hidden_.assign(state.begin(), state.end());
    }
    struct Level {
        DeviceGraph graph;
        ggml_tensor* input;  // [h * (depth + 1), nodes]
    };
    Level& level_for(int depth, size_t nodes) {
        const size_t width = level_width(nodes);
        auto& level = levels_[{depth, width}];
        if (!level) level = build(depth, width);
        return *level;
    }
    std::unique_ptr<Level> build(int depth, size_t nodes) {
        auto level = std::make_unique<Level>(Level{DeviceGraph(backend_.get(), 8 + hydra_tensors(*heads_)), nullptr});
        ggml_context* c = level->graph.context();
        const int64_t h = heads_->model().embedding_size();
        level->input = level->graph.new_input(h * (depth + 1), static_cast<int64_t>(nodes));
        level->graph.finish(ggml_soft_max(c, hydra_logits(c, *heads_, depth - 1, level->input)));
        return level;
    }

    TokenEmbeddings embeddings_;
    std::vector<float> hidden_;
    std::vector<float> values_;  // inputs of a level, node by node: cat(h, emb(root), emb(node 1), ..)
    std::map<std::pair<int, size_t>, std::unique_ptr<Level>> levels_;
};

}  // namespace

std::unique_ptr<HeadsLevels> make_levels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads,
                                         const AttentionTap* attention, std::shared_ptr<PrefixCache> cache) {
    if (heads->streams()) {
        if (!attention) throw Error("streams read what their base attends to: ask them within a session");
        return std::make_unique<StreamLevels>(std::move(heads), depth, std::move(threads), *attention);
    }
    if (heads->metadata().kind == HeadsKind::recurrent)
        return std::make_unique<RecurrentLevels>(std::move(heads), depth, std::move(threads));
    if (heads->metadata().reads_path())
        return std::make_unique<HydraLevels>(std::move(heads), depth, std::move(threads), std::move(cache));
    return std::make_unique<MedusaLevels>(std::move(heads), depth, std::move(threads), std::move(cache));
}

}  // namespace medusa
