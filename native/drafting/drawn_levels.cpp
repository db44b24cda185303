// Dynamic trees whose tokens are drawn: how many children a level gets, and which tokens these carry.

#include <algorithm>
#include <numeric>

#include "drafting/dynamic_tree.h"

namespace medusa {

// The pool ends with all candidates of level `depth`, after `settled` nodes. Keeps of them what belongs to the best
// tree that deeper levels could make of it, and draws their tokens. Returns how many nodes are settled then.
size_t DynamicTree::settle(int depth, size_t settled, int room, const DraftCost& cost, Drawing& drawing) {
    const size_t known = pool_.size();
    const double node_worth = cost.rate() * cost.node_ms();
    for (size_t from = settled, at = depth + 1; at <= static_cast<size_t>(depth_); ++at) {
        const size_t next = pool_.size();
        foresee(static_cast<int>(at), from, node_worth);
        from = next;
    }
    const Size size = choose_size(room, cost, settled);
    std::vector<bool> chosen(pool_.size(), false);
    for (int i = 0; i + 1 < size.nodes; ++i) chosen[order_[i]] = true;
    std::vector<std::vector<Candidate>> rows(frontier_.size());
    for (size_t i = settled; i < known; ++i) {
        if (chosen[i]) rows[(i - settled) / std::min(drafts_.ranks, params_.ranks)].push_back(pool_[i]);
    }
    ranked_.insert(ranked_.end(), pool_.begin() + static_cast<std::ptrdiff_t>(settled),
                   pool_.begin() + static_cast<std::ptrdiff_t>(known));
    pool_.resize(settled);
    proposals_.resize(settled + 1);
    for (size_t row = 0; row < rows.size(); ++row) draw_row(row, rows[row], drawing);
    return pool_.size();
}

// Of the tree that holds the whole pool.
DynamicTree::Size DynamicTree::settled_size(const DraftCost& cost) {
    order_.resize(pool_.size());
    std::iota(order_.begin(), order_.end(), 0);
    TreeSize size{static_cast<int>(pool_.size()) + 1, 1};
    double tokens = 1;
    std::vector<bool> has_child(pool_.size() + 1, false);
    for (const Candidate& candidate : pool_) {
        tokens += candidate.p;
        const auto parent = static_cast<size_t>(candidate.parent + 1);
        if (has_child[parent]) ++size.leaves;
        has_child[parent] = true;
    }
    const double plain_worth = 1 - cost.rate() * cost.verify_ms(TreeSize());
    return {size.nodes, tokens - cost.rate() * cost.verify_ms(size) - plain_worth};
}

// Children of the candidates from `from` on, as level `depth` has had them on average.
void DynamicTree::foresee(int depth, size_t from, double node_worth) {
    for (size_t i = from, end = pool_.size(); i < end; ++i) {
        for (int rank = 0; rank < params_.ranks; ++rank) {
            const double p = pool_[i].p * shares_[depth][rank];
            if (p <= node_worth) break;
            pool_.push_back({0, Origin::heads, false, static_cast<int>(i), depth, 0, p, 0});
        }
    }
}

// The chosen candidates of a row become nodes: recycled ones as they are, in place of the others as many drawn ones.
void DynamicTree::draw_row(size_t row, const std::vector<Candidate>& chosen, Drawing& drawing) {
    const int parent = frontier_[row];
    std::vector<Token> tokens;
    std::vector<float> q;
    const auto width = static_cast<size_t>(drafts_.ranks);
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
        if (drafts_.origin(i) == Origin::recycled) continue;
        tokens.push_back(drafts_.tokens[i]);
        q.push_back(drafts_.q[i]);
    }
    const auto draws = static_cast<int>(std::count_if(
        chosen.begin(), chosen.end(), [](const Candidate& candidate) { return candidate.origin != Origin::recycled; }));
    Proposal& proposal = proposals_[static_cast<size_t>(parent + 1)];
    proposal = make_proposal(tokens, q, drawing.sampling);
    const auto drawn = draw_distinct(proposal, draws, drawing.random);
    size_t next = 0;
    for (Candidate candidate : chosen) {
        if (candidate.origin != Origin::recycled) {
            candidate.drawn = next < drawn.size();
            // A proposal is a prefix of the tokens: with all of it drawn, the rest follows.
            candidate.token = candidate.drawn ? drawn[next].token : tokens[next];
            ++next;
        }
        pool_.push_back(candidate);
        proposals_.emplace_back();
    }
}

}  // namespace medusa
