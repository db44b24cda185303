// Whether steps are accepted and drafted on the host, or by the model's own graph where the model runs: there no rows
// of logits and states come to the host, only what was found.
#pragma once

#include <string>

#include "base/common.h"

namespace medusa {

// What the graph of a decode found, by greedy acceptance.
struct GreedyStep {
    int node = 0;    // the deepest accepted node of the tree that was decoded
    Token next = 0;  // the token after it
};

// A session, as far as the place of its steps depends on it.
struct StepFacts {
    bool on_device = false;   // the output matrix lies on a device
    bool fixed_tree = false;  // or none: nothing drafts
    bool branches = true;     // not a recurrent model, which follows chains
    bool heads_alone = true;  // no lookup, no recycling, no draft model, no lookahead
    bool heads_fit = true;    // of a kind that drafts in the graph
    std::string lacks;        // what the graph of the model, or its device, does not have; empty: nothing
};

// An answer, as far as it depends on it.
struct AnswerFacts {
    bool greedy = true;       // the most likely token, always
    bool bare_logits = true;  // no penalties, no biases
};

// Why steps take place on the host; empty: the model's graph accepts and drafts.
std::string host_reason(const StepFacts& session, const AnswerFacts& answer);

}  // namespace medusa
