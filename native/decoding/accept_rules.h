// The acceptance rules of accept.h that look at more than one draw a node, and what they share.
#pragma once

#include "decoding/accept.h"

namespace medusa {

// What a rule is asked with.
struct AcceptContext {
    Target& target;
    const Draft& draft;
    Chain& chain;  // past the root
    const AcceptParams& params;
    const SamplingParams& sampling;
    uint64_t emitted;
};

// What the rule takes for the model's distribution after `row`, in token order: the chain's output, or that of the
// model at the temperature alone.
void distribution_of(Target& target, int row, Chain& chain, const AcceptParams& params, const SamplingParams& sampling,
                     std::vector<Candidate>& out);

// Draws from such a distribution by the rule, with the number of the token `emitted`.
Token pick_from(std::vector<Candidate>& distribution, const AcceptParams& params, const SamplingParams& sampling,
                uint64_t emitted);

Accepted accept_typical(const AcceptContext& context);
Accepted accept_nucleus(const AcceptContext& context);

}  // namespace medusa
