#include "drafting/merged_levels.h"

#include <algorithm>

namespace medusa {

void MergedLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    recycled_->level(depth, paths, ranks, of_recycled_);
    of_recycled_.origins.assign(of_recycled_.tokens.size(), Origin::recycled);
    reached_.clear();
    is_reached_.clear();
    const auto length = static_cast<size_t>(depth), width = static_cast<size_t>(ranks);
    for (size_t at = 0; at < paths.size(); at += length) {
        const auto path = paths.subspan(at, length);
        is_reached_.push_back(asks_heads_ && depth <= heads_->depth() && heads_->reaches(path));
        if (is_reached_.back()) reached_.insert(reached_.end(), path.begin(), path.end());
    }
    if (reached_.empty()) {
        std::swap(out, of_recycled_);
        return;
    }
    heads_->level(depth, reached_, ranks, of_heads_);
    out = {ranks, {}, {}, {}};
    size_t of_heads = 0;
    for (size_t row = 0; row < is_reached_.size(); ++row) {
        if (is_reached_[row]) {
            merge_row(width * of_heads++, width * row, width, out);
            continue;
        }
        const auto begin = static_cast<std::ptrdiff_t>(width * row), end = begin + ranks;
        const auto add = [&](auto& to, const auto& from) {
            to.insert(to.end(), from.begin() + begin, from.begin() + end);
        };
        add(out.tokens, of_recycled_.tokens);
        add(out.q, of_recycled_.q);
        add(out.origins, of_recycled_.origins);
    }
}

// Both rows of a node, from these places on.
void MergedLevels::merge_row(size_t of_heads, size_t of_recycled, size_t width, LevelDrafts& out) const {
    struct Found {
        Token token;
        float q;
        Origin origin;
    };
    std::vector<Found> guesses;
    for (size_t i = of_heads; i < of_heads + width; ++i) {
        guesses.push_back({of_heads_.tokens[i], of_heads_.q[i], Origin::heads});
    }
    const auto heads_end = static_cast<std::ptrdiff_t>(width);
    for (size_t i = of_recycled; i < of_recycled + width; ++i) {
        const auto same = std::find_if(guesses.begin(), guesses.begin() + heads_end,
                                       [&](const Found& g) { return g.token == of_recycled_.tokens[i]; });
        if (same == guesses.begin() + heads_end) {
            guesses.push_back({of_recycled_.tokens[i], of_recycled_.q[i], Origin::recycled});
        } else if (of_recycled_.q[i] > 0) {
            same->origin = Origin::both;
        }
    }
    std::stable_sort(guesses.begin(), guesses.end(), [](const Found& a, const Found& b) { return a.q > b.q; });
    for (size_t i = 0; i < width; ++i) {
        out.tokens.push_back(guesses[i].token);
        out.q.push_back(guesses[i].q);
        out.origins.push_back(guesses[i].origin);
    }
}

}  // namespace medusa
