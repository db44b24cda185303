#include "lookup_drafter.h"

#include <algorithm>
#include <numeric>

namespace medusa {

LookupDrafter::LookupDrafter(std::unique_ptr<Drafter> inner, const LookupParams& params)
    : inner_(std::move(inner)),
      params_(params),
      index_(params.min_length, params.max_length),
      accuracy_(params.min_length, params.max_length),
      cost_(params.node_cost) {
    std::vector<Choice> choices;
    chains_.emplace_back();
    for (int n = 1; n <= params_.max_nodes; ++n) {
        choices.push_back(Choice(n, 0));
        chains_.emplace_back(choices);
    }
}

TreeBounds LookupDrafter::bounds(const TreeBounds& inner, const LookupParams& params) {
    return {std::min(inner.leaves + 1, Tree::max_size), std::min(inner.nodes + params.max_nodes, Tree::max_size)};
}

void LookupDrafter::begin(std::span<const Token> prompt) {
    if (inner_) inner_->begin(prompt);
    const auto known = index_.tokens();
    if (known.size() > prompt.size() || !std::equal(known.begin(), known.end(), prompt.begin())) index_.clear();
    for (const Token token : prompt.subspan(index_.tokens().size())) append(token, false);
}

void LookupDrafter::verified(const Tree& tree, double ms) {
    if (inner_) inner_->verified(tree, ms);
    if (params_.measures_cost) cost_.record(tree.size(), ms);
}

void LookupDrafter::append(Token token, bool learn) {
    const LookupMatch match = index_.match();
    if (learn && match.length > 0) accuracy_.record(match.length, index_.tokens()[match.next] == token);
    index_.append(token);
}

// The number of nodes with the most expected tokens per cost. Each accepted node makes the match one token longer.
int LookupDrafter::chain_length(int inner_size, int room) const {
    const int length = index_.match().length;
    if (length == 0) return 0;
    const int most = std::min({params_.max_nodes, room - inner_size, Tree::max_size - inner_size});
    double reached = 1.0, tokens = 1.0, node_cost = cost_.per_node(), cost = 1.0 + node_cost * (inner_size - 1);
    double best_rate = tokens / cost;
    int best = 0;
    for (int n = 1; n <= most; ++n) {
        reached *= accuracy_.probability(length + n - 1);
        tokens += reached;
        cost += node_cost;
        if (tokens / cost <= best_rate) continue;
        best_rate = tokens / cost;
        best = n;
    }
    return best;
}

void LookupDrafter::draft(const DraftInput& input, const Tree& shape, Draft& out) {
    for (const Token token : input.context.subspan(index_.tokens().size())) append(token, true);
    out.tree = &chains_[0];
    out.tokens.assign(1, input.context.back());
    out.q.assign(1, 1.0f);
    if (inner_) inner_->draft(input, shape, out);
    index_.continuation(chain_length(out.tree->size(), input.room), chain_);
    if (!chain_.empty()) graft(out);
}

// Follows the drafted nodes that carry the chain's tokens and hangs the rest of the chain below the last of them.
void LookupDrafter::graft(Draft& out) {
    const Tree& base = *out.tree;
    int node = 0;
    size_t shared = 0;
    for (; shared < chain_.size(); ++shared) {
        const auto& children = base.children(node);
        const auto same =
            std::find_if(children.begin(), children.end(), [&](int c) { return out.tokens[c] == chain_[shared]; });
        if (same == children.end()) break;
        node = *same;
    }
    if (shared == chain_.size()) return;
    std::vector<Choice> choices = base.choices();
    Choice choice = node > 0 ? choices[node - 1] : Choice{};
    const auto& siblings = base.children(node);
    int rank =
        siblings.empty() ? 0 : 1 + base.rank(*std::max_element(siblings.begin(), siblings.end(), [&](int a, int b) {
            return base.rank(a) < base.rank(b);
        }));
    for (size_t i = shared; i < chain_.size(); ++i, rank = 0) {
        choice.push_back(rank);
        choices.push_back(choice);
        out.tokens.push_back(chain_[i]);
        out.q.push_back(accuracy_.probability(index_.match().length + static_cast<int>(i)));
    }
    if (base.size() == 1) {
        out.tree = &chains_[chain_.size()];
        return;
    }
    // A tree sorts its choices stably by depth: tokens and probabilities go along.
    std::vector<int> order(choices.size());
    std::iota(order.begin(), order.end(), 1);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return choices[a - 1].size() < choices[b - 1].size(); });
    const std::vector<Token> tokens = out.tokens;
    const std::vector<float> q = out.q;
    for (size_t i = 0; i < order.size(); ++i) {
        out.tokens[i + 1] = tokens[order[i]];
        out.q[i + 1] = q[order[i]];
    }
    joined_ = Tree(std::move(choices));
    out.tree = &joined_;
}

}  // namespace medusa
