#include "in_graph/medusa_drafts.h"

#include "heads/medusa_levels.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {

MedusaDrafts::MedusaDrafts(std::shared_ptr<Heads> heads, const Tree& shape) : heads_(std::move(heads)) {
    levels_.assign(static_cast<size_t>(shape.depth()), {1, shape.max_rank() + 1});
}

ggml_tensor* MedusaDrafts::build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) {
    const int depth = static_cast<int>(levels_.size()), ranks = levels_.front().ranks;
    ggml_tensor* state = ggml_get_rows(c, states, accepted.index);
    ggml_tensor* rows = largest(c, medusa_logits(c, *heads_, state, depth), ranks);
    return ggml_reshape_1d(c, rows, int64_t{depth} * ranks);
}

size_t MedusaDrafts::most_tensors() const {
    return medusa_tensors(*heads_, static_cast<int>(levels_.size())) + largest_tensors;
}

}  // namespace medusa::in_graph
