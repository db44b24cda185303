#include "decoding/tree_cache.h"

#include <algorithm>

namespace medusa {

bool TreeCache::truncate(int count) {
    if (count >= position()) return true;
    if (!ops_.remove(-1, count, -1)) return false;
    for (int& filled : in_step_) filled = std::min(filled, count);
    return true;
}

void TreeCache::forget() {
    std::fill(in_step_.begin(), in_step_.end(), 0);
}

void TreeCache::prepare(const Tree& tree, std::span<const Token>) {
    for (int leaf = 1; leaf < tree.leaf_count(); ++leaf) {
        if (in_step_[leaf] == position()) continue;
        ops_.copy(0, leaf, in_step_[leaf], position());
        in_step_[leaf] = position();
    }
}

void TreeCache::commit(const Tree& tree, const std::vector<int>& path) {
    const int start = position();
    const int end = start + static_cast<int>(path.size());
    const int winner = tree.sequences(path.back()).front();
    // All that is deeper than the accepted path goes, whatever branch it is on.
    if (tree.depth() >= static_cast<int>(path.size())) ops_.remove(-1, end, -1);
    // How many nodes of the path each leaf shares; its own nodes beside the path are removed, the path's are added.
    std::vector<int> shared(tree.leaf_count(), 0);
    for (const int node : path) {
        for (const int leaf : tree.sequences(node)) ++shared[leaf];
    }
    for (int leaf = 0; leaf < tree.leaf_count(); ++leaf) {
        const int kept = start + shared[leaf];
        if (kept != end) {
            ops_.remove(leaf, kept, -1);
            ops_.copy(winner, leaf, kept, end);
        }
        in_step_[leaf] = end;
    }
}

}  // namespace medusa
