#include "drafting/merged_levels.h"

#include <algorithm>
#include <numeric>

namespace medusa {

void MergedLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    recycled_->level(depth, paths, ranks, of_recycled_);
    of_recycled_.origins.assign(of_recycled_.tokens.size(), Origin::recycled);
    if (depth > heads_->depth() || !asks_heads_) {
        std::swap(out, of_recycled_);
        return;
    }
    heads_->level(depth, paths, ranks, of_heads_);
    out = {ranks, {}, {}, {}};
    struct Found {
        Token token;
        float q;
        Origin origin;
    };
    std::vector<Found> guesses;
    const auto width = static_cast<size_t>(ranks);
    for (size_t row = 0; row < of_heads_.tokens.size(); row += width) {
        guesses.clear();
        for (size_t i = row; i < row + width; ++i) {
            guesses.push_back({of_heads_.tokens[i], of_heads_.q[i], Origin::heads});
        }
        for (size_t i = row; i < row + width; ++i) {
            const auto same = std::find_if(guesses.begin(), guesses.begin() + ranks,
                                           [&](const Found& g) { return g.token == of_recycled_.tokens[i]; });
            if (same == guesses.begin() + ranks) {
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
}

}  // namespace medusa
