#include "decoding/accept.h"

#include <algorithm>

#include "decoding/accept_rules.h"
#include "decoding/rejection.h"

namespace medusa {
namespace {

Accepted accept_sampled(const AcceptContext& context) {
    Accepted accepted{{0}, 0};
    for (uint64_t emitted = context.emitted;; ++emitted) {
        const int node = accepted.path.back();
        const Token token = pick(context.target, node, context.chain, context.params, context.sampling, emitted);
        const auto& children = context.draft.tree->children(node);
        const auto match = std::find_if(children.begin(), children.end(),
                                        [&](int child) { return context.draft.tokens[child] == token; });
        if (match == children.end()) {
            accepted.next_root = token;
            return accepted;
        }
        accepted.path.push_back(*match);
    }
}

Accepted accept_rejection(const AcceptContext& context) {
    StepRandom random(context.sampling.seed, context.emitted, StepRandom::Purpose::acceptance);
    Accepted accepted{{0}, 0};
    const Passes passes = [&](double chance) { return random.next() < chance; };
    std::vector<Candidate> distribution;
    while (true) {
        const int node = accepted.path.back();
        distribution_of(context.target, node, context.chain, context.params, context.sampling, distribution);
        const int child = accept_child(context.draft, node, distribution, passes);
        const Token token = child < 0 ? draw(distribution, random.next()) : context.draft.tokens[child];
        context.chain.accept(token);
        if (child < 0) {
            accepted.next_root = token;
            return accepted;
        }
        accepted.path.push_back(child);
    }
}

// Each reached node is sampled as in accept_sampled, so that the time is the same.
Accepted accept_synthetic(const AcceptContext& context) {
    Accepted accepted{{0}, 0};
    for (uint64_t emitted = context.emitted;; ++emitted) {
        const int node = accepted.path.back();
        const auto& children = context.draft.tree->children(node);
        accepted.next_root =
            pick(context.target, node, context.chain, context.params, context.sampling, context.emitted);
        const bool passes =
            !children.empty() && uniform(context.sampling.seed, emitted) < context.params.synthetic_rate;
        if (!passes) return accepted;
        accepted.path.push_back(children.front());
    }
}

}  // namespace

Token pick(Target& target, int row, Chain& chain, const AcceptParams& params, const SamplingParams& sampling,
           uint64_t emitted) {
    std::vector<Candidate> distribution;
    distribution_of(target, row, chain, params, sampling, distribution);
    const Token token = pick_from(distribution, params, sampling, emitted);
    chain.accept(token);
    return token;
}

Accepted accept_draft(Target& target, const Draft& draft, Chain& chain, const AcceptParams& params,
                      const SamplingParams& sampling, uint64_t emitted) {
    const AcceptContext context{target, draft, chain, params, sampling, emitted};
    switch (params.kind) {
        case AcceptKind::rejection:
            return accept_rejection(context);
        case AcceptKind::typical:
            return accept_typical(context);
        case AcceptKind::nucleus:
            return accept_nucleus(context);
        case AcceptKind::synthetic:
            return accept_synthetic(context);
        case AcceptKind::greedy:
        case AcceptKind::exact:
            break;
    }
    return accept_sampled(context);
}

}  // namespace medusa
