#include "in_graph/medusa_drafts.h"

#include "heads/medusa_levels.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {

MedusaDrafts::MedusaDrafts(std::shared_ptr<Heads> heads, const DraftShape& shape, std::unique_ptr<Prefix> prefix)
    : Drafts(std::move(prefix)), heads_(std::move(heads)) {
    if (const auto* wanted = std::get_if<GrownShape>(&shape)) {
        levels_.assign(static_cast<size_t>(wanted->depth), {1, wanted->ranks});
        grown_ = true;
    } else {
        const Tree& tree = std::get<Tree>(shape);
        levels_.assign(static_cast<size_t>(tree.depth()), {1, tree.max_rank() + 1});
    }
}

ggml_tensor* MedusaDrafts::build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) {
    const int depth = static_cast<int>(levels_.size()), ranks = levels_.front().ranks;
    ggml_tensor* logits = medusa_logits(c, *heads_, state(c, states, accepted), depth);
    const auto flat = [&](ggml_tensor* numbers) { return ggml_reshape_1d(c, numbers, int64_t{depth} * ranks); };
    if (!grown_) return flat(largest(c, logits, ranks));
    ggml_tensor* probabilities = ggml_soft_max(c, logits);
    ggml_tensor* rows = largest(c, probabilities, ranks);
    ggml_tensor* found = at_places(c, probabilities, as_index(c, rows, heads_->output_rows()));
    return ggml_concat(c, flat(rows), flat(found), 0);
}

ggml_tensor* MedusaDrafts::level_logits(ggml_context* c, ggml_tensor* state, int depth, ggml_tensor*) {
    ggml_tensor* all = medusa_logits(c, *heads_, state, depth);
    return ggml_cont(c, ggml_view_2d(c, all, all->ne[0], 1, all->nb[1], static_cast<size_t>(depth - 1) * all->nb[1]));
}

size_t MedusaDrafts::most_tensors() const {
    return medusa_tensors(*heads_, static_cast<int>(levels_.size())) + largest_tensors + 24 + state_tensors;
}

}  // namespace medusa::in_graph
