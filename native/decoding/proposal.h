// What rejection sampling needs of a drafter: children that are drawn, and what they were drawn from.
#pragma once

#include <span>
#include <vector>

#include "decoding/sampler.h"

namespace medusa {

// The distribution that the children of a node are drawn from, without replacement: likeliest first, summing to 1.
using Proposal = std::vector<Candidate>;

// Most tokens of a proposal; the likeliest ones of a drafter's distribution.
inline constexpr int proposal_width = 64;

// How a step's drafts are drawn.
struct Drawing {
    const SamplingParams& sampling;  // temperature and truncation of the chain
    StepRandom random;
};

// tokens, q: what the drafter finds likeliest, in that order, with its probabilities. Keeps of them what the chain's
// top-k, top-p and min-p would, a prefix, and puts the rest at its temperature.
Proposal make_proposal(std::span<const Token> tokens, std::span<const float> q, const SamplingParams& sampling);

// `count` candidates, or all where there are fewer, one after the other in proportion to the probabilities of those
// that are left (the law of Gumbel-top-k).
std::vector<Candidate> draw_distinct(const Proposal& proposal, int count, StepRandom& random);

}  // namespace medusa
