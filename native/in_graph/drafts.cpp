#include "in_graph/drafts.h"

#include <algorithm>

#include "drafting/dynamic_tree.h"
#include "heads/graph.h"
#include "heads/levels.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {
namespace {

int depth_of(const DraftShape& shape) {
    if (const auto* grown = std::get_if<GrownShape>(&shape)) return grown->depth;
    return std::get<Tree>(shape).depth();
}

// Medusa heads: one column for each depth.
class MedusaDrafts final : public Drafts {
  public:
    using Drafts::Drafts;
    ggml_tensor* build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) override {
        const int depth = static_cast<int>(levels_.size()), ranks = levels_.front().ranks;
        ggml_tensor* logits = medusa_logits(c, *heads_, state(c, states, accepted), depth);
        const auto flat = [&](ggml_tensor* numbers) { return ggml_reshape_1d(c, numbers, int64_t{depth} * ranks); };
        if (!grown_) return flat(largest(c, logits, ranks));
        ggml_tensor* probabilities = ggml_soft_max(c, logits);
        ggml_tensor* rows = largest(c, probabilities, ranks);
        ggml_tensor* found = at_places(c, probabilities, as_index(c, rows, heads_->output_rows()));
        return ggml_concat(c, flat(rows), flat(found), 0);
    }

    ggml_tensor* level_logits(ggml_context* c, ggml_tensor* state, int depth, ggml_tensor*) override {
        ggml_tensor* all = medusa_logits(c, *heads_, state, depth);
        return ggml_cont(c,
                         ggml_view_2d(c, all, all->ne[0], 1, all->nb[1], static_cast<size_t>(depth - 1) * all->nb[1]));
    }

    size_t most_tensors() const override {
        return medusa_tensors(*heads_, static_cast<int>(levels_.size())) + largest_tensors + 24 + state_tensors;
    }
};

}  // namespace

// What a step brings to the host, drafts and what is learned from as many nodes as it may have, is less than 4 KB.
GrownShape grown_shape(int depth, int rows, int likeliest) {
    constexpr int most_numbers = 1000, most_nodes = 48;
    const DynamicTreeParams params;
    return {depth, std::min(params.ranks, rows), params.width, most_numbers - most_nodes * likeliest};
}

int numbers_of_grown(const std::vector<LevelShape>& levels, bool reads_path) {
    int out = 0;
    for (size_t at = 0; at < levels.size(); ++at) {
        out += 2 * levels[at].size() + (reads_path && at > 0 ? levels[at].columns : 0);
    }
    return out;
}

std::vector<LevelShape> levels_of(const DraftShape& shape, bool reads_path) {
    const auto depth = static_cast<size_t>(depth_of(shape));
    if (const auto* tree = std::get_if<Tree>(&shape)) {
        if (!reads_path) return std::vector<LevelShape>(depth, {1, tree->max_rank() + 1});
        std::vector<LevelShape> levels(depth, {0, 1});
        for (int node = 1; node < tree->size(); ++node) {
            LevelShape& level = levels[static_cast<size_t>(tree->depth_of(node) - 1)];
            level.ranks = std::max(level.ranks, tree->rank(node) + 1);
            level.columns += node == tree->children(tree->parent(node)).front();
        }
        return levels;
    }
    const GrownShape& grown = std::get<GrownShape>(shape);
    std::vector<LevelShape> levels(depth, {1, grown.ranks});
    // As wide as wanted, as long as what comes to the host stays small.
    for (int width = grown.width; reads_path && width > 0; --width) {
        for (size_t at = 1; at < depth; ++at) levels[at].columns = std::min(width, levels[at - 1].size());
        if (numbers_of_grown(levels, reads_path) <= grown.most) break;
    }
    return levels;
}

Drafts::Drafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size)
    : heads_(std::move(heads)),
      levels_(levels_of(shape, heads_->metadata().reads_path())),
      grown_(std::holds_alternative<GrownShape>(shape)) {
    if (heads_->metadata().has_prefix) prefix_ = std::make_unique<Prefix>(heads_, depth_of(shape), context_size);
}

ggml_tensor* Drafts::state(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) {
    return prefix_ ? prefix_->build(c, states, accepted) : ggml_get_rows(c, states, accepted.index);
}

std::string heads_need(const Heads& heads) {
    const HeadsMetadata& metadata = heads.metadata();
    if (metadata.kind == HeadsKind::streams) return "streams read the KV cache of the base's layers";
    if (!needs_of(heads).layers.empty()) return "the heads read the states of a lower layer";
    return "";
}

std::unique_ptr<Drafts> make_drafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size) {
    if (heads->metadata().reads_path()) return make_path_drafts(std::move(heads), shape, context_size);
    return std::make_unique<MedusaDrafts>(std::move(heads), shape, context_size);
}

}  // namespace medusa::in_graph
