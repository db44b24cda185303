#include "decoding/drafter.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace medusa {

Proposal make_proposal(std::span<const Token> tokens, std::span<const float> q, const SamplingParams& sampling) {
    const size_t most = sampling.top_k > 0 ? std::min<size_t>(q.size(), sampling.top_k) : q.size();
    const double all = std::accumulate(q.begin(), q.begin() + static_cast<std::ptrdiff_t>(most), 0.0);
    Proposal proposal;
    double sum = 0.0, cumulative = 0.0;
    for (size_t i = 0; i < most && q[i] > 0.0f; ++i) {
        if (i > 0 && (cumulative >= sampling.top_p * all || q[i] < sampling.min_p * q[0])) break;
        cumulative += q[i];
        const float weight = std::pow(q[i] / q[0], 1.0f / sampling.temperature);
        if (!(weight > 0.0f)) break;
        proposal.push_back({tokens[i], weight});
        sum += weight;
    }
    for (Candidate& candidate : proposal) candidate.p = static_cast<float>(candidate.p / sum);
    return proposal;
}

std::vector<Candidate> draw_distinct(const Proposal& proposal, int count, StepRandom& random) {
    Proposal left = proposal;
    std::vector<Candidate> out;
    while (!left.empty() && out.size() < static_cast<size_t>(count)) {
        double sum = 0.0;
        for (const Candidate& candidate : left) sum += candidate.p;
        double u = random.next() * sum;
        auto at = left.begin();
        for (; at + 1 != left.end() && u >= at->p; ++at) u -= at->p;
        out.push_back(*at);
        left.erase(at);
    }
    return out;
}

void Draft::set_root(Token root) {
    static const Tree root_only;
    tree = &root_only;
    tokens.assign(1, root);
    q.assign(1, 1.0f);
    drawn.assign(1, false);
    proposals.clear();
}

void draw_children(int node, std::span<const Token> tokens, std::span<const float> q, Drawing& drawing, Draft& draft) {
    const auto& children = draft.tree->children(node);
    Proposal& proposal = draft.proposals[node];
    proposal = make_proposal(tokens, q, drawing.sampling);
    const auto drawn = draw_distinct(proposal, static_cast<int>(children.size()), drawing.random);
    for (size_t i = 0; i < children.size(); ++i) {
        const int child = children[i];
        draft.drawn[child] = i < drawn.size();
        // A proposal is a prefix of the tokens: once all of it is drawn, the rest follow.
        draft.tokens[child] = draft.drawn[child] ? drawn[i].token : tokens[i];
        draft.q[child] = draft.drawn[child] ? drawn[i].p : q[i];
    }
}

}  // namespace medusa
