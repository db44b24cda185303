#include "decoding/sequence_memory.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

namespace medusa {

bool TreeCache::truncate(int count) {
    if (count >= position()) return true;
    if (count < ops_.shortest() || !ops_.remove(-1, count, -1)) return false;
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
    // Removes everything deeper than the accepted path, whatever branch it is on.
    if (tree.depth() >= static_cast<int>(path.size())) ops_.remove(-1, end, -1);
    // How many nodes of the path each leaf shares; its nodes off the path are removed, those of the path are added.
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

// Only sequence 0: the others hold the same cells, and a session with another tree has others.
void TreeCache::save(StateWriter& out) {
    for (int leaf = 1; leaf < static_cast<int>(in_step_.size()); ++leaf) {
        if (std::exchange(in_step_[leaf], 0) > 0) ops_.remove(leaf, 0, -1);
    }
    out.number<int32_t>(position());
    ops_.save_all(out);
}

bool TreeCache::restore(StateReader& in) {
    forget();
    in_step_[0] = in.number<int32_t>();
    if (!ops_.set_all(in) || position() < 0) return false;
    // libllama overwrites a cell that a window hides if it belongs to one sequence alone.
    if (in_step_.size() > 1) {
        ops_.copy(0, 1, 0, position());
        in_step_[1] = position();
    }
    return true;
}

void ChainMemory::appended(int count) {
    position_ += count;
    pending_.clear();
    saved_ = false;
}

bool ChainMemory::truncate(int count) {
    const int held = position_ - static_cast<int>(pending_.size());
    if (count >= position_) return true;
    if (count < held) return go_back(count);
    pending_.resize(count - held);
    position_ = count;
    return true;
}

// Goes back to the newest checkpoint within the first `count` tokens.
bool ChainMemory::go_back(int count) {
    while (newest_checkpoint() > count) checkpoints_.pop_back();
    if (checkpoints_.empty() || newest_checkpoint() < ops_.shortest()) return false;
    drop_copy();
    pending_.clear();
    position_ = newest_checkpoint();
    // Cells of single tokens beside the state are removed only after it: a memory that holds both asks the state first.
    return ops_.set_state(checkpoints_.back().state) && ops_.remove(0, position_, -1);
}

int ChainMemory::next_keep(int end) const {
    const int nearest = std::max(position_ + 1, newest_checkpoint() + least), last = end - before_end;
    const int strided = (nearest + stride - 1) / stride * stride, next = std::min(strided, last);
    return next >= nearest ? next : end;
}

void ChainMemory::keep() {
    std::vector<uint8_t> state;
    try {
        state = ops_.state();
    } catch (const std::bad_alloc&) {
        return;  // the text is the same without it
    }
    if (state.empty() || state.size() > most_bytes || !pending_.empty()) return;
    checkpoints_.push_back({position_, std::move(state)});
    const auto bytes = [this] {
        return std::accumulate(checkpoints_.begin(), checkpoints_.end(), size_t{0},
                               [](size_t sum, const Checkpoint& one) { return sum + one.state.size(); });
    };
    while (checkpoints_.size() > 1 && (checkpoints_.size() > most_checkpoints || bytes() > most_bytes)) {
        checkpoints_.erase(checkpoints_.begin());
    }
}

void ChainMemory::forget() {
    position_ = 0;
    pending_.clear();
    checkpoints_.clear();
    saved_ = copied_ = false;
}

void ChainMemory::prepare(const Tree& tree, std::span<const Token> tokens) {
    if (tree.leaf_count() > 1) throw Error("a recurrent model can check only a chain of drafts");
    if (snapshots_ > 0 && tree.size() > 1 + snapshots_) throw Error("the chain is longer than the state can step back");
    chain_.assign(tokens.begin(), tokens.end());
    if (snapshots_ > 0 || saved_ || tree.size() == 1) return;
    ops_.remove(1, 0, -1);
    ops_.copy(0, 1, 0, -1);
    saved_ = copied_ = true;
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
    take_copy_back();
    pending_.insert(pending_.end(), chain_.begin(), chain_.begin() + accepted);
}

// A failed decode leaves the running state half written.
bool ChainMemory::rollback() {
    if (!saved_) return go_back(position_);
    take_copy_back();
    return true;
}

void ChainMemory::take_copy_back() {
    ops_.remove(0, 0, -1);
    ops_.copy(1, 0, 0, -1);
}

void ChainMemory::drop_copy() {
    if (copied_) ops_.remove(1, 0, -1);
    saved_ = copied_ = false;
}

void ChainMemory::save(StateWriter& out) {
    drop_copy();
    out.number<int32_t>(position_);
    out.list<Token>(pending_);
    ops_.save_all(out);
    out.number<uint64_t>(checkpoints_.size());
    for (const Checkpoint& one : checkpoints_) {
        out.number<int32_t>(one.position);
        out.list<uint8_t>(one.state);
    }
}

bool ChainMemory::restore(StateReader& in) {
    forget();
    const auto position = in.number<int32_t>();
    auto pending = in.list<Token>();
    if (!ops_.set_all(in)) return false;
    for (auto count = in.number<uint64_t>(); count > 0; --count) {
        const auto at = in.number<int32_t>();
        checkpoints_.push_back({at, in.list<uint8_t>()});
    }
    position_ = position;
    pending_ = std::move(pending);
    return position >= static_cast<int>(pending_.size());
}

}  // namespace medusa
