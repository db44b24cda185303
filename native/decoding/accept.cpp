#include "decoding/accept.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace medusa {
namespace {

float typical_threshold(const std::vector<Candidate>& distribution, const AcceptParams& params) {
    double entropy = 0.0;
    for (const Candidate& candidate : distribution) {
        if (candidate.p > 0.0f) entropy -= candidate.p * std::log(static_cast<double>(candidate.p));
    }
    return std::min(params.epsilon, params.delta * static_cast<float>(std::exp(-entropy)));
}

const Candidate& most_probable(const std::vector<Candidate>& distribution) {
    return *std::max_element(distribution.begin(), distribution.end(),
                             [](const Candidate& a, const Candidate& b) { return a.p < b.p; });
}

// Keeps what typical acceptance would accept, renormalised. Never empty: exp(-H) <= max p.
void truncate_typical(std::vector<Candidate>& distribution, const AcceptParams& params) {
    const float threshold = typical_threshold(distribution, params);
    const Candidate best = most_probable(distribution);
    std::erase_if(distribution, [&](const Candidate& c) { return c.p <= threshold && c.token != best.token; });
    float sum = 0.0f;
    for (const Candidate& candidate : distribution) sum += candidate.p;
    for (Candidate& candidate : distribution) candidate.p /= sum;
}

Token pick_from(std::vector<Candidate>& distribution, const AcceptParams& params, uint64_t seed, uint64_t emitted) {
    if (params.kind == AcceptKind::greedy || params.kind == AcceptKind::synthetic) {
        return most_probable(distribution).token;
    }
    if (params.kind == AcceptKind::typical) {
        if (params.greedy_root) return most_probable(distribution).token;
        truncate_typical(distribution, params);
    }
    return draw(distribution, uniform(seed, emitted));
}

Accepted accept_sampled(Target& target, const Draft& draft, Chain& chain, const AcceptParams& params, uint64_t seed,
                        uint64_t emitted) {
    Accepted accepted{{0}, 0};
    while (true) {
        const int node = accepted.path.back();
        const Token token = pick(target, node, chain, params, seed, emitted++);
        const auto& children = draft.tree->children(node);
        const auto match =
            std::find_if(children.begin(), children.end(), [&](int child) { return draft.tokens[child] == token; });
        if (match == children.end()) {
            accepted.next_root = token;
            return accepted;
        }
        accepted.path.push_back(*match);
    }
}

// Each reached node is sampled as in accept_sampled, so that the time is the same.
Accepted accept_synthetic(Target& target, const Draft& draft, Chain& chain, const AcceptParams& params, uint64_t seed,
                          uint64_t emitted) {
    Accepted accepted{{0}, 0};
    while (true) {
        const int node = accepted.path.back();
        const auto& children = draft.tree->children(node);
        accepted.next_root = pick(target, node, chain, params, seed, emitted);
        if (children.empty() || uniform(seed, emitted++) >= params.synthetic_rate) return accepted;
        accepted.path.push_back(children.front());
    }
}

// One node whose path has been accepted so far.
struct Reached {
    int node;
    double log_likelihood;
    std::unique_ptr<Chain> chain;  // past the node's token
    std::vector<Candidate> distribution;
};

Accepted accept_typical(Target& target, const Draft& draft, Chain& chain, const AcceptParams& params, uint64_t seed,
                        uint64_t emitted) {
    const Tree& tree = *draft.tree;
    std::vector<Reached> reached;
    reached.push_back({0, 0.0, chain.clone(), {}});
    size_t best = 0;
    for (size_t i = 0; i < reached.size(); ++i) {
        const int node = reached[i].node;
        reached[i].chain->apply(target.logits(node), reached[i].distribution);
        const Reached& here = reached[i];
        const int depth = tree.depth_of(node), best_depth = tree.depth_of(reached[best].node);
        if (depth > best_depth || (depth == best_depth && here.log_likelihood > reached[best].log_likelihood)) best = i;
        const float threshold = typical_threshold(here.distribution, params);
        std::vector<Reached> next;
        for (const int child : tree.children(node)) {
            const auto candidate =
                std::lower_bound(here.distribution.begin(), here.distribution.end(), draft.tokens[child],
                                 [](const Candidate& c, Token token) { return c.token < token; });
            if (candidate == here.distribution.end() || candidate->token != draft.tokens[child]) continue;
            if (candidate->p <= threshold) continue;
            auto advanced = here.chain->clone();
            advanced->accept(draft.tokens[child]);
            next.push_back({child, here.log_likelihood + std::log(candidate->p), std::move(advanced), {}});
        }
        for (Reached& child : next) reached.push_back(std::move(child));
    }
    Accepted accepted{tree.path(reached[best].node), 0};
    accepted.next_root = pick_from(reached[best].distribution, params, seed, emitted + accepted.path.size() - 1);
    for (size_t i = 1; i < accepted.path.size(); ++i) chain.accept(draft.tokens[accepted.path[i]]);
    chain.accept(accepted.next_root);
    return accepted;
}

}  // namespace

Token pick(Target& target, int row, Chain& chain, const AcceptParams& params, uint64_t seed, uint64_t emitted) {
    std::vector<Candidate> distribution;
    chain.apply(target.logits(row), distribution);
    const Token token = pick_from(distribution, params, seed, emitted);
    chain.accept(token);
    return token;
}

Accepted accept_draft(Target& target, const Draft& draft, Chain& chain, const AcceptParams& params, uint64_t seed,
                      uint64_t emitted) {
    if (params.kind == AcceptKind::typical) return accept_typical(target, draft, chain, params, seed, emitted);
    if (params.kind == AcceptKind::synthetic) return accept_synthetic(target, draft, chain, params, seed, emitted);
    return accept_sampled(target, draft, chain, params, seed, emitted);
}

}  // namespace medusa
