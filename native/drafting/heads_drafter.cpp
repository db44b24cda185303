#include "drafting/heads_drafter.h"

#include <algorithm>

namespace medusa {

void HeadsDrafter::draft(const DraftInput& input, Draft& out) {
    out.set_root(input.context.back());
    const Tree& shape = input.shape;
    if (input.rests) source_->rest();
    if (input.plain || shape.size() == 1) return;
    source_->begin(input);
    if (!source_->reaches(input.context.last(1))) return;
    out.tree = &shape;
    out.tokens.resize(shape.size());
    out.q.resize(shape.size());
    out.drawn.resize(shape.size(), false);
    if (input.drawing) out.proposals.resize(shape.size());
    row_of_.assign(shape.size(), -1);
    // Nodes of a tree are sorted by depth.
    for (int first = 1, last; first < shape.size(); first = last) {
        for (last = first + 1; last < shape.size() && shape.depth_of(last) == shape.depth_of(first);) ++last;
        const int ranks = ask(shape, first, last, input.drawing, out);
        fill_level(shape, first, last, ranks, input.drawing, out);
    }
}

// Asks for the level of nodes first..last-1, all at one depth, for each of their parents; returns its ranks.
int HeadsDrafter::ask(const Tree& shape, int first, int last, const Drawing* drawing, const Draft& out) {
    const int depth = shape.depth_of(first);
    int ranks = drawing ? std::min(proposal_width, ranks_) : 0, rows = 0;
    paths_.clear();
    for (int node = first; node < last; ++node) {
        ranks = std::max(ranks, shape.rank(node) + 1);
        const int parent = shape.parent(node);
        if (row_of_[parent] >= 0) continue;
        row_of_[parent] = rows++;
        paths_.resize(static_cast<size_t>(rows * depth));
        for (int i = depth - 1, at = parent; i >= 0; --i, at = shape.parent(at)) {
            paths_[static_cast<size_t>((rows - 1) * depth + i)] = out.tokens[at];
        }
    }
    source_->level(depth, paths_, ranks, drafts_);
    return ranks;
}

void HeadsDrafter::fill_level(const Tree& shape, int first, int last, int ranks, Drawing* drawing, Draft& out) {
    for (int node = first; node < last; ++node) {
        const int parent = shape.parent(node);
        const auto row = static_cast<size_t>(row_of_[parent] * ranks);
        if (!drawing) {
            const size_t at = row + static_cast<size_t>(shape.rank(node));
            out.tokens[node] = drafts_.tokens[at];
            out.q[node] = drafts_.q[at];
        } else if (node == shape.children(parent).front()) {
            const auto count = static_cast<size_t>(ranks);
            draw_children(parent, std::span(drafts_.tokens).subspan(row, count),
                          std::span(drafts_.q).subspan(row, count), *drawing, out);
        }
    }
}

}  // namespace medusa
