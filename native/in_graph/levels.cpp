#include "in_graph/levels.h"

namespace medusa::in_graph {

void InGraphLevels::rolled_back(int position) {
    tail_->rolled_back(position);
    on_host_->rolled_back(position);
}

void InGraphLevels::begin(const DraftInput& input) {
    if (!tail_->attached()) on_host_->begin(input);
}

void InGraphLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    if (!tail_->attached()) return on_host_->level(depth, paths, ranks, out);
    const std::vector<LevelShape>& levels = tail_->levels();
    size_t first = 0;
    for (int above = 1; above < depth; ++above) first += static_cast<size_t>(levels[above - 1].size());
    const LevelShape& shape = levels[depth - 1];
    const size_t nodes = paths.size() / static_cast<size_t>(depth);
    out.ranks = ranks;
    out.tokens.clear();
    for (size_t node = 0; node < nodes; ++node) {
        const size_t column = first + (shape.columns == 1 ? 0 : node * static_cast<size_t>(shape.ranks));
        for (int rank = 0; rank < ranks; ++rank) {
            out.tokens.push_back(heads_->token(static_cast<int>(tail_->drafted()[column + static_cast<size_t>(rank)])));
        }
    }
    out.q.assign(out.tokens.size(), 1.0f);
}

}  // namespace medusa::in_graph
