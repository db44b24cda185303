#include "draft_model/branching_model.h"

#include <algorithm>

namespace medusa {

void BranchCache::drop_branches() {
    for (int sequence = 1; sequence < used_; ++sequence) ops_.remove(sequence, 0, -1);
    used_ = 1;
    levels_.clear();
}

bool BranchCache::truncate(int count) {
    const bool has_branches = !levels_.empty();
    drop_branches();
    if (count >= position_ && !has_branches) return true;
    position_ = std::min(count, position_);
    return ops_.remove(0, position_, -1);
}

void BranchCache::forget() {
    levels_.clear();
    position_ = 0;
    used_ = 1;
}

std::span<const int> BranchCache::branch(std::span<const int> parents) {
    const std::vector<int> tips = levels_.empty() ? std::vector<int>{0} : levels_.back();
    std::vector<bool> continued(tips.size(), false);
    std::vector<int>& level = levels_.emplace_back();
    for (const int parent : parents) {
        int sequence = tips[parent];
        if (continued[parent]) {
            if (used_ == max_sequences_) throw Error("the draft model's branches: more than it has sequences for");
            ops_.copy(sequence, used_, 0, position_ + depth() - 1);
            sequence = used_++;
        }
        continued[parent] = true;
        level.push_back(sequence);
    }
    return level;
}

void BranchCache::keep(std::span<const int> rows) {
    if (levels_.empty()) return;
    int shared = 0, winner = 0;
    for (size_t depth = 0; depth < rows.size(); ++depth) {
        winner = levels_[depth][rows[depth]];
        if (winner == 0) ++shared;
    }
    const int end = position_ + static_cast<int>(rows.size());
    ops_.remove(0, position_ + shared, -1);
    if (winner != 0) ops_.copy(winner, 0, position_ + shared, end);
    position_ = end;
    drop_branches();
}

void BranchCache::save(StateWriter& out) const {
    out.number<int32_t>(position_);
    ops_.save_all(out);
}

bool BranchCache::restore(StateReader& in) {
    forget();
    position_ = in.number<int32_t>();
    return ops_.set_all(in) && position_ >= 0;
}

}  // namespace medusa
