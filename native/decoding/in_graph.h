// Whether steps are accepted and drafted on the host, or where the model runs, by its own graph: there no rows of
// logits and states come to the host, only what was found.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/common.h"
#include "decoding/tree.h"

namespace medusa {

// How an answer's steps are accepted and drafted.
enum class StepWay {
    host,    // rows of logits and states come to the host
    greedy,  // the graph of a decode accepts greedily, and drafts
    ranked   // it names the likeliest tokens of each row; the host accepts, and a graph of the heads drafts behind it
};

// What the graph of a decode found, by greedy acceptance.
struct GreedyStep {
    int node = 0;    // the deepest accepted node of the tree that was decoded
    Token next = 0;  // the token after it
};

// One of the likeliest tokens of a row.
struct RankedToken {
    Token token;
    float logit;
};
// Of each row, at most.
inline constexpr int most_ranked = 40;

// What a drafter learns from a row: its likeliest tokens, likeliest first, the lowest first among equals.
struct Likeliest {
    std::vector<Token> tokens;
    float lead = 0;  // of the first over the second, in logits
};

// A target whose model can accept and draft in its own graph: rows of logits and states then stay on a device.
class GraphSteps {
  public:
    virtual ~GraphSteps() = default;
    // From the next prefill on. Returns the way that is taken.
    virtual StepWay take_way(StepWay wanted) = 0;
    // Whether trees are decoded as if they had padded_size() nodes.
    virtual bool pads() const = 0;
    // Of greedy steps: what the newest decode found. None: rows hold what it does not judge (NaN), look at them.
    virtual std::optional<GreedyStep> greedy_step() const = 0;
    // Of ranked steps: the likeliest tokens of a row, likeliest first, the lowest first among equals. Empty: look at
    // the row.
    virtual std::span<const RankedToken> ranked(int row) = 0;
    // What the newest graph said of a row to drafters. No tokens: look at the row.
    virtual Likeliest likeliest(int row) = 0;
};

// A session, as far as the way of its steps depends on it.
struct StepFacts {
    bool on_device = false;  // the output matrix lies on a device
    bool branches = true;    // not a recurrent model, which follows chains
    bool draft_model = false;
    bool lookahead = false;
    std::string heads_need;  // what the heads read that the graph does not have; empty: nothing
    std::string lacks;       // what the graph of the model, or its device, does not have; empty: nothing
};

// An answer, as far as it depends on it.
struct AnswerFacts {
    bool greedy = true;       // the most likely token, always
    bool bare_logits = true;  // no penalties, no biases
    bool few_ranks = true;    // no more than the `most_ranked` likeliest tokens count
};

// Why steps take place on the host; empty: in the model's graph.
std::string host_reason(const StepFacts& session, const AnswerFacts& answer);

// Trees whose shape changes from step to step are decoded as if they had so many nodes: then few graphs do for all.
int padded_size(int nodes);
// Nodes at its end, up to `size`, that are never accepted, and a sequence for each node.
Tree padded(const Tree& tree, int size);

}  // namespace medusa
