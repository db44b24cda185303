// Rejection sampling over the children of one node (SpecInfer, Miao et al. 2023, arXiv:2305.09781; Speculative
// Streaming, equation 6): the base model's distribution, whatever the children were drawn from.
#pragma once

#include <functional>
#include <vector>

#include "decoding/drafter.h"

namespace medusa {

// Whether a test of that chance is passed.
using Passes = std::function<bool(double chance)>;

// The accepted child of `node`, or -1. `p`: the model's distribution there, in token order; without an accepted child
// it becomes what the next token is drawn from.
//
// Children that were not drawn come first, by rank: x passes with probability p(x), else p loses x. They also leave the
// proposal q: a drawn child stands for the next draw from what is left of q, and passes with probability min(1, p / q),
// else p becomes max(p - q, 0) and q loses it; p and q always sum to 1.
int accept_child(const Draft& draft, int node, std::vector<Candidate>& p, const Passes& passes);

}  // namespace medusa
