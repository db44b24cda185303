// Acceptance rules: which drafted path the base model agrees with.
#pragma once

#include <functional>
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

    // Throws Error where a number is out of its range.
    void check() const;
};

// Outcome of one verify step.
struct Accepted {
    std::vector<int> path;  // nodes from the root downwards; always begins with 0
    Token next_root = 0;    // sampled at path.back(); carries no cache entry yet
};

// Draws the token after `row` of the target and moves the chain past it.
// greedy: argmax of the chain's output. Others: one random number; typical and nucleus draw from what they accept.
Token pick(Target& target, int row, Chain& chain, const AcceptParams& params, const SamplingParams& sampling,
           uint64_t emitted);

// Accepts nodes of a verified draft. `chain` has consumed everything up to the root and is moved past the accepted
// nodes and the new root. `emitted`: tokens emitted so far in this generation (indexes the random numbers).
//   greedy, exact: sample once at each reached node, go on where a child carries that token (Medusa 2.3.1; exact keeps
//     the base distribution because a child is taken exactly when the base model drew it).
//   rejection: tests the children in turn (accept_child); keeps the base distribution, too.
//   typical: a child passes when p > min(epsilon, delta * exp(-H)); the longest passing path wins, ties by likelihood.
//   nucleus (the Medusa repository's): follows each path from the root to a leaf while it carries the tokens drawn for
//     it alone from the top_p nucleus of softmax(logits / temperature); the longest wins, the first among equals.
//   synthetic: goes on to the first child with a fixed probability, whatever the model says. Not real output: it costs
//     what real drafts with that acceptance would.
Accepted accept_draft(Target& target, const Draft& draft, Chain& chain, const AcceptParams& params,
                      const SamplingParams& sampling, uint64_t emitted);

// Whether a test with this chance of passing is passed.
using Passes = std::function<bool(double chance)>;

// Rejection sampling over the children of one node (SpecInfer, Miao et al. 2023, arXiv:2305.09781; Speculative
// Streaming, equation 6): the base model's distribution, whatever the children were drawn from.
//
// The accepted child of `node`, or -1. `p`: the model's distribution there, in token order; without an accepted child
// it becomes what the next token is drawn from.
//
// Children that were not drawn come first, by rank: x passes with probability p(x), else p loses x. They leave the
// proposal q, too: a drawn child stands for the next draw from what is left of q, and passes with probability min(1, p
// / q), else p becomes max(p - q, 0) and q loses it; p and q always sum to 1.
int accept_child(const Draft& draft, int node, std::vector<Candidate>& p, const Passes& passes);

}  // namespace medusa
