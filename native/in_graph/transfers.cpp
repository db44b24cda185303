#include "in_graph/transfers.h"

#include "heads/graph.h"
#include "in_graph/drafts.h"
#include "in_graph/named_rows.h"
#include "in_graph/step_tail.h"

namespace medusa::in_graph {

StepTransfers transfers_of(const Tree& tree, int vocab_size, int embedding_size, const std::optional<HeadsShape>& heads,
                           int recycled) {
    constexpr int64_t size = sizeof(float);
    const int64_t likeliest = LikeliestRows::numbers(vocab_size);
    StepTransfers out;
    out.logits = size * tree.size() * vocab_size;
    out.greedy = out.grown = size * (static_cast<int64_t>(greedy_numbers) + likeliest * recycled);
    out.sampled = size * tree.size() * RankedRows::numbers(vocab_size);
    if (!heads) return out;
    out.states = size * tree.size() * embedding_size;
    if (heads->has_prefix) out.heads += size * embedding_size;
    for (const LevelShape& level : levels_of(tree, heads->reads_path)) {
        out.heads += size * heads->output_rows * static_cast<int64_t>(level_width(static_cast<size_t>(level.columns)));
        out.greedy += size * level.size();
        out.sampled += size * level.size();
    }
    const GrownShape grown =
        grown_shape(heads->head_count, heads->output_rows, recycled > 0 ? static_cast<int>(likeliest) : 0);
    out.grown += size * numbers_of_grown(levels_of(grown, heads->reads_path), heads->reads_path);
    return out;
}

}  // namespace medusa::in_graph
