#include "decoding/accept.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

using Distribution = std::vector<std::pair<Token, float>>;

std::vector<Candidate> candidates(const Distribution& distribution) {
    std::vector<Candidate> out;
    for (const auto& [token, p] : distribution) out.push_back({token, p});
    return out;
}

Distribution pairs(const std::vector<Candidate>& candidates) {
    Distribution out;
    for (const Candidate& candidate : candidates) out.emplace_back(candidate.token, candidate.p);
    return out;
}

std::pair<Distribution, Distribution> chances(const std::vector<Token>& tokens, const std::vector<bool>& drawn,
                                              const Distribution& proposal, const Distribution& p) {
    std::vector<int> parents(tokens.size() + 1, 0);
    parents[0] = -1;
    const Tree tree = Tree::from_parents(parents);
    Draft draft;
    draft.set_root(0);
    draft.tree = &tree;
    draft.tokens.insert(draft.tokens.end(), tokens.begin(), tokens.end());
    draft.drawn.insert(draft.drawn.end(), drawn.begin(), drawn.end());
    draft.proposals = {candidates(proposal)};
    // The i-th run passes the i-th test: which child was tested, and with what chance.
    Distribution tested;
    for (size_t wanted = 0;; ++wanted) {
        auto left = candidates(p);
        size_t test = 0;
        double chance = 0;
        const int child = accept_child(draft, 0, left, [&](double c) {
            chance = c;
            return test++ == wanted;
        });
        if (child < 0) return {tested, pairs(left)};
        tested.emplace_back(draft.tokens[child], static_cast<float>(chance));
    }
}

Distribution proposal(const std::vector<Token>& tokens, const std::vector<float>& q, const SamplingParams& sampling) {
    return pairs(make_proposal(tokens, q, sampling));
}

std::vector<Token> draws(const Distribution& proposal, int count, uint64_t seed, uint64_t emitted) {
    StepRandom random(seed, emitted, StepRandom::Purpose::drafts);
    std::vector<Token> out;
    for (const Candidate& candidate : draw_distinct(candidates(proposal), count, random)) {
        out.push_back(candidate.token);
    }
    return out;
}

}  // namespace

void bind_rejection(nb::module_& m) {
    m.def("rejection_chances", &chances, "tokens"_a, "drawn"_a, "proposal"_a, "p"_a,
          "Below a node with these children: the chance of each that is tested, where those before it were\n"
          "rejected; and what the next token is drawn from after them all. p: in token order.");
    m.def("proposal", &proposal, "tokens"_a, "q"_a, "sampling"_a,
          "What children are drawn from; tokens and q: a drafter's likeliest.");
    m.def("draws", &draws, "proposal"_a, "count"_a, "seed"_a, "emitted"_a);
}

}  // namespace medusa::testing
