#include "in_graph/levels.h"

#include <algorithm>

namespace medusa::in_graph {

void InGraphLevels::rolled_back(int position, int same) {
    tail_->rolled_back(position);
    on_host_->rolled_back(position, same);
    if (tail_->attached()) on_host_->settle();
}

void InGraphLevels::begin(const DraftInput& input) {
    draws_ = input.drawing != nullptr;
    if (!tail_->attached()) return on_host_->begin(input);
    if (draws_) return tail_->begin_drawing(input.row);
    tail_->draft(input.row, input.context.back());
    if (tail_->drafts().grown() && !tail_->drafted().empty()) read_columns(input.context.back());
}

bool InGraphLevels::begin_free(const DraftInput& input) {
    if (!tail_->attached()) return on_host_->begin_free(input);
    rest();
    return false;
}

void InGraphLevels::rest() {
    tail_->attached() ? tail_->rest() : on_host_->rest();
}

// Reads the beam's choices: each column goes on from one of the candidates of the level above.
void InGraphLevels::read_columns(Token root) {
    const std::vector<LevelShape>& levels = tail_->drafts().levels();
    const auto drafted = tail_->drafted();
    size_t candidates = 0, first = 0;
    for (const LevelShape& level : levels) candidates += static_cast<size_t>(level.size());
    columns_.assign(1, {{root}});
    if (!heads_->metadata().reads_path()) return;
    size_t place = 2 * candidates;
    for (size_t at = 1; at < levels.size(); ++at) {
        const LevelShape& above = levels[at - 1];
        std::vector<std::vector<Token>> paths;
        for (int column = 0; column < levels[at].columns; ++column) {
            const auto chosen = static_cast<size_t>(drafted[place++]);
            std::vector<Token> path = columns_.back()[chosen / static_cast<size_t>(above.ranks)];
            path.push_back(heads_->token(static_cast<int>(drafted[first + chosen])));
            paths.push_back(std::move(path));
        }
        columns_.push_back(std::move(paths));
        first += static_cast<size_t>(above.size());
    }
}

size_t InGraphLevels::column_of(int depth, std::span<const Token> path) const {
    const auto& paths = columns_[static_cast<size_t>(depth - 1)];
    const auto same = [&](const std::vector<Token>& other) {
        return std::equal(path.begin(), path.end(), other.begin());
    };
    return static_cast<size_t>(std::find_if(paths.begin(), paths.end(), same) - paths.begin());
}

bool InGraphLevels::reaches(std::span<const Token> path) const {
    if (!tail_->attached()) return on_host_->reaches(path);
    if (draws_) return true;
    if (tail_->drafted().empty()) return false;
    if (!tail_->drafts().grown() || !heads_->metadata().reads_path()) return true;
    const auto depth = static_cast<int>(path.size());
    return column_of(depth, path) < columns_[static_cast<size_t>(depth - 1)].size();
}

void InGraphLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    if (!tail_->attached()) return on_host_->level(depth, paths, ranks, out);
    if (draws_) return tail_->draw_level(depth, paths, ranks, out);
    const Drafts& drafts = tail_->drafts();
    const std::vector<LevelShape>& levels = drafts.levels();
    const auto drafted = tail_->drafted();
    size_t first = 0, candidates = 0;
    for (size_t at = 0; at < levels.size(); ++at) {
        if (at + 1 < static_cast<size_t>(depth)) first += static_cast<size_t>(levels[at].size());
        candidates += static_cast<size_t>(levels[at].size());
    }
    const bool reads_path = heads_->metadata().reads_path();
    const auto length = static_cast<size_t>(depth);
    const auto width = static_cast<size_t>(levels[length - 1].ranks);
    out.ranks = std::min(ranks, static_cast<int>(width));
    out.tokens.clear();
    out.q.clear();
    for (size_t node = 0; node < paths.size() / length; ++node) {
        size_t column = 0;
        if (reads_path) column = drafts.grown() ? column_of(depth, paths.subspan(node * length, length)) : node;
        for (size_t rank = 0; rank < static_cast<size_t>(out.ranks); ++rank) {
            const size_t at = first + column * width + rank;
            out.tokens.push_back(heads_->token(static_cast<int>(drafted[at])));
            out.q.push_back(drafts.grown() ? drafted[candidates + at] : 1.0f);
        }
    }
}

}  // namespace medusa::in_graph
