#include "decoding/sequence_memory.h"

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

void ChainMemory::appended(int count) {
    position_ += count;
    pending_.clear();
    saved_ = false;
}

bool ChainMemory::truncate(int count) {
    const int held = position_ - static_cast<int>(pending_.size());
    if (count < position_ && count < held) return false;
    if (count < position_) {
        pending_.resize(count - held);
        position_ = count;
    }
    return true;
}

void ChainMemory::forget() {
    position_ = 0;
    pending_.clear();
    saved_ = false;
}

void ChainMemory::prepare(const Tree& tree, std::span<const Token> tokens) {
    if (tree.leaf_count() > 1) throw Error("a recurrent model can check only a chain of drafts");
    if (snapshots_ > 0 && tree.size() > 1 + snapshots_) throw Error("the chain is longer than the state can step back");
    chain_.assign(tokens.begin(), tokens.end());
    if (snapshots_ > 0 || saved_ || tree.size() == 1) return;
    ops_.remove(1, 0, -1);
    ops_.copy(0, 1, 0, -1);
    saved_ = true;
}

void ChainMemory::commit(const Tree& tree, const std::vector<int>& path) {
    const auto accepted = static_cast<int>(path.size());
    if (accepted == tree.size()) {
        appended(accepted);
        return;
    }
    position_ += accepted;
    if (snapshots_ > 0) {
        if (!ops_.remove(0, position_, -1))
            throw Error("the state of this model cannot be rolled back", "use {no_spec}");
        return;
    }
    restore();
    pending_.insert(pending_.end(), chain_.begin(), chain_.begin() + accepted);
}

// A failed decode leaves the running state half written.
bool ChainMemory::rollback() {
    if (!saved_) return false;
    restore();
    return true;
}

void ChainMemory::restore() {
    ops_.remove(0, 0, -1);
    ops_.copy(1, 0, 0, -1);
}

}  // namespace medusa
