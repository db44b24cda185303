#include "decoding/rejection.h"

#include <algorithm>

namespace medusa {
namespace {

// Divides by the sum. false: nothing is left, and nothing is changed.
bool normalise(std::vector<Candidate>& distribution) {
    double sum = 0.0;
    for (const Candidate& candidate : distribution) sum += candidate.p;
    if (!(sum > 0.0)) return false;
    for (Candidate& candidate : distribution) candidate.p = static_cast<float>(candidate.p / sum);
    return true;
}

void remove(std::vector<Candidate>& distribution, Token token) {
    std::erase_if(distribution, [&](const Candidate& candidate) { return candidate.token == token; });
    normalise(distribution);
}

// nullptr: no probability. In token order.
Candidate* find(std::vector<Candidate>& distribution, Token token) {
    const auto at = std::lower_bound(distribution.begin(), distribution.end(), token,
                                     [](const Candidate& c, Token wanted) { return c.token < wanted; });
    return at != distribution.end() && at->token == token ? &*at : nullptr;
}

// max(p - q, 0). Where rounding leaves nothing (q was p, so that rejecting has no chance), p stays.
void subtract(std::vector<Candidate>& p, const Proposal& q) {
    std::vector<Candidate> left = p;
    for (const Candidate& candidate : q) {
        if (Candidate* at = find(left, candidate.token)) at->p = std::max(at->p - candidate.p, 0.0f);
    }
    std::erase_if(left, [](const Candidate& candidate) { return candidate.p <= 0.0f; });
    if (normalise(left)) p = std::move(left);
}

}  // namespace

int accept_child(const Draft& draft, int node, std::vector<Candidate>& p, const Passes& passes) {
    const auto& children = draft.tree->children(node);
    Proposal q;
    if (static_cast<size_t>(node) < draft.proposals.size()) q = draft.proposals[node];
    for (const int child : children) {
        if (draft.drawn[child]) continue;
        const Token token = draft.tokens[child];
        const Candidate* at = find(p, token);
        if (at && passes(at->p)) return child;
        if (at && p.size() > 1) remove(p, token);
        remove(q, token);
    }
    for (const int child : children) {
        if (!draft.drawn[child]) continue;
        const Token token = draft.tokens[child];
        const auto from = std::find_if(q.begin(), q.end(), [&](const Candidate& c) { return c.token == token; });
        const Candidate* at = find(p, token);
        if (at && passes(std::min(1.0, static_cast<double>(at->p) / from->p))) return child;
        subtract(p, q);
        remove(q, token);
    }
    return -1;
}

}  // namespace medusa
