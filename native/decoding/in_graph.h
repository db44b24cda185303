// Whether steps are accepted and drafted on the host, or by the model's own graph where the model runs: then only the
// results come to the host, no rows of logits or states.
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
    ranked   // it names the likeliest tokens of each row; the host accepts, and a graph of the heads drafts after it
};

// What the graph of a decode found by greedy acceptance.
struct GreedyStep {
    int node = 0;    // the deepest accepted node of the decoded tree
    Token next = 0;  // the token after it
};

// One of the likeliest tokens of a row.
struct RankedToken {
    Token token;
    float logit;
};
// Per row, at most.
inline constexpr int most_ranked = 40;

// What a drafter learns from a row: its likeliest tokens, likeliest first (ties: the lowest first).
struct Likeliest {
    std::vector<Token> tokens;
    float lead = 0;  // of the first over the second, in logits
};

// A target whose model can accept and draft in its own graph: rows of logits and states then stay on a device.
class GraphSteps {
  public:
    virtual ~GraphSteps() = default;
    // Takes effect with the next prefill. Returns the way actually taken.
    virtual StepWay take_way(StepWay wanted) = 0;
    // Whether trees are decoded as if they had padded_size() nodes.
    virtual bool pads() const = 0;
    // For greedy steps: what the newest decode found. None: rows hold values it cannot judge (NaN), look at them.
    virtual std::optional<GreedyStep> greedy_step() const = 0;
    // For ranked steps: the likeliest tokens of a row, likeliest first (ties: the lowest first). Empty: look at the
    // row.
    virtual std::span<const RankedToken> ranked(int row) = 0;
    // What the newest graph told drafters about a row. No tokens: look at the row.
    virtual Likeliest likeliest(int row) = 0;
};

// What the choice of StepWay depends on in a session.
struct StepFacts {
    bool on_device = false;  // the output matrix lies on a device
    bool branches = true;    // not a recurrent model, which can only follow chains
    bool draft_model = false;
    bool lookahead = false;
    std::string heads_need;  // what the heads read and the graph lacks; empty: nothing
    std::string lacks;       // what the model's graph or its device lacks; empty: nothing
};

// What the choice of StepWay depends on in an answer.
struct AnswerFacts {
    bool greedy = true;       // always the most likely token
    bool bare_logits = true;  // no penalties, no biases
    bool few_ranks = true;    // no more than the `most_ranked` likeliest tokens count
};

// Why steps take place on the host; empty: in the model's graph.
std::string host_reason(const StepFacts& session, const AnswerFacts& answer);

// Trees whose shape changes from step to step are decoded as if they had this many nodes: then a few graphs serve all.
int padded_size(int nodes);
// Adds nodes at the end, up to `size`, that are never accepted, and gives each node a sequence.
Tree padded(const Tree& tree, int size);

}  // namespace medusa
