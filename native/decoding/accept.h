// Acceptance rules: which drafted path the base model agrees with.
#pragma once

#include <vector>

#include "decoding/drafter.h"
#include "decoding/sampler.h"
#include "decoding/target.h"

namespace medusa {

enum class AcceptKind { greedy, exact, rejection, typical, nucleus, synthetic };

struct AcceptParams {
    AcceptKind kind = AcceptKind::greedy;
    float epsilon = 0.09f;        // typical only
    float delta = 0.3f;           // typical only
    bool model_alone = false;     // typical only: p and H of softmax(logits / temperature), not of the chain's output
    bool greedy_root = false;     // typical and nucleus
    float synthetic_rate = 0.0f;  // synthetic only
};

// Outcome of one verify step.
struct Accepted {
    std::vector<int> path;  // nodes from the root downwards; always begins with 0
    Token next_root = 0;    // sampled at path.back(); carries no cache entry yet
};

// Draws the token after `row` of the target and moves the chain past it.
// greedy: argmax of the chain's output. Others: one random number; typical and nucleus: from what they accept.
Token pick(Target& target, int row, Chain& chain, const AcceptParams& params, const SamplingParams& sampling,
           uint64_t emitted);

// Accepts nodes of a verified draft. `chain` has consumed everything up to the root and is moved past the accepted
// nodes and the new root. `emitted`: tokens emitted so far in this generation (indexes the random numbers).
//   greedy, exact: sample once at each reached node, go on where a child carries that token (Medusa 2.3.1; exact keeps
//     the base distribution because a child is taken exactly when the base model drew it).
//   rejection: tests the children in turn (accept_child); keeps the base distribution, too.
//   typical: a child passes when p > min(epsilon, delta * exp(-H)); the longest passing path wins, ties by likelihood.
//   nucleus (the Medusa repository's): each path from the root to a leaf is followed as far as it carries tokens drawn
//     for it alone from the top_p nucleus of softmax(logits / temperature); the longest wins, the first of equals.
//   synthetic: goes on to the first child with a fixed probability, whatever the model says. Not real output: it costs
//     what real drafts of that acceptance would.
Accepted accept_draft(Target& target, const Draft& draft, Chain& chain, const AcceptParams& params,
                      const SamplingParams& sampling, uint64_t emitted);

}  // namespace medusa
