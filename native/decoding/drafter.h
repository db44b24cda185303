// What proposes tokens: Medusa heads, Hydra, prompt lookup and others share this interface.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "decoding/in_graph.h"
#include "decoding/sampler.h"
#include "decoding/state_bytes.h"
#include "decoding/tree.h"

namespace medusa {

// What a drafter reads besides token ids.
struct DrafterNeeds {
    bool hidden = false;        // hidden states: of the last accepted node in draft(), of all of them in committed()
    std::vector<int> layers{};  // hidden states are those after these layers (from 0), not those after the last norm
    bool next_states = false;   // hidden states are those that layers for further tokens (MTP) read
    bool attention = false;     // and what the layers above that one attend to
    bool all_states = false;    // committed() for every token of the prompt, not only for its last one
    bool rows = false;          // verified(): what the model said at every node of a draft
};

// The distribution from which a node's children are drawn without replacement: likeliest first, summing to 1.
using Proposal = std::vector<Candidate>;

// Most tokens in a proposal: the likeliest of a drafter's distribution.
inline constexpr int proposal_width = 64;

// How a step's drafts are drawn.
struct Drawing {
    const SamplingParams& sampling;  // temperature and truncation of the chain
    StepRandom random;
};

// tokens, q: the tokens a drafter finds likeliest, in that order, and their probabilities. Keeps the prefix that the
// chain's top-k, top-p and min-p would keep, and applies the chain's temperature to it.
Proposal make_proposal(std::span<const Token> tokens, std::span<const float> q, const SamplingParams& sampling);

// `count` candidates, or all where there are fewer, drawn one after the other in proportion to the probabilities of
// those left (the law of Gumbel-top-k).
std::vector<Candidate> draw_distinct(const Proposal& proposal, int count, StepRandom& random);

// A drafter cannot follow this text any further. The answer goes on without drafts.
class DraftsEnd : public Error {
  public:
    using Error::Error;
};

// A token that may follow the one before it, and how likely it is to.
struct Guess {
    Token token;
    float q;
};

// Whether a token may follow a path of tokens, which begins with the root.
using Allows = std::function<bool(std::span<const Token> path, Token token)>;

struct DraftInput {
    std::span<const Token> context;  // committed tokens, then the root
    std::span<const float> hidden;   // state the root was sampled from; empty when not needed or not there yet
    int room;                        // most nodes, including the root, that the context has cells for
    const Tree& shape;               // what a drafter of a fixed tree fills
    bool plain = false;              // no drafts are wanted, except from drafters that weigh their own cost
    Drawing* drawing = nullptr;      // tokens are to be drawn; null: the likeliest ones are drafted
    int row = 0;                     // row of the newest decode that `hidden` belongs to
    std::span<const Guess> chain{};  // what else may follow the root, one after the other: for drafters that join it
    const Allows* allows = nullptr;  // null: any token may come. Others would be dropped, so need not be drafted
    bool rests = false;  // as far as is known, the next step wants no drafts either: none need be made ahead
};

// tree->size() tokens; tokens[0] is the root. q[i]: the drafter's probability of node i given its path (q[0] = 1).
//
// Where tokens are drawn, how many children a node has, and which of them are drawn, never depends on how they or the
// nodes below them turn out: otherwise rejection sampling would be biased.
struct Draft {
    const Tree* tree = nullptr;
    std::vector<Token> tokens;
    std::vector<float> q;
    std::vector<bool>
        drawn;  // [i]: node i was drawn from its parent's proposal, after its drawn siblings of lower rank
    std::vector<Proposal> proposals;  // of the nodes, for as many as have one

    // Only the root: nothing drafted.
    void set_root(Token root);
};

// A draft that the model has checked.
struct Verified {
    std::span<const Token> context;  // committed tokens before the root
    const Draft& draft;
    const std::vector<int>& path;                              // accepted nodes, from the root down
    Token next;                                                // the token after the last of them
    std::function<std::span<const float>(int node)> logits{};  // of the token after a node
    std::function<Likeliest(int node)> likeliest{};            // for the same token; none where only the logits tell
};

// Gives the children of `node` in draft.tree the tokens that the drafter finds likeliest there, drawn as far as
// possible: where the proposal has fewer tokens than there are children, the likeliest of the other tokens follow.
void draw_children(int node, std::span<const Token> tokens, std::span<const float> q, Drawing& drawing, Draft& draft);

class Drafter {
  public:
    virtual ~Drafter() = default;
    virtual DrafterNeeds needs() const = 0;
    // Whether it builds one tree from its own drafts and DraftInput::chain.
    virtual bool joins_chain() const { return false; }
    // A generation starts: the contexts of its drafts extend `prompt`.
    virtual void begin(std::span<const Token> prompt) {}
    // A committed token and its state, in order of position. Only where hidden states are needed.
    virtual void committed(int position, Token token, std::span<const float> state) {}
    // The first `same` tokens of the text stay: where its states have to be computed again from, at most `same`.
    virtual int resumes_at(int same) const { return same; }
    // Tokens from `position` on are committed again; the first `same` of the text (at least `position`) stay as they
    // are, the others no longer belong to it.
    virtual void rolled_back(int position, int same) {}
    // Only where rows are needed; called before the nodes of the path are committed.
    virtual void verified(const Verified& step) {}
    // Whatever it would otherwise compute again from the committed tokens, for restore() by a drafter of the same kind
    // and file.
    virtual void save(StateWriter& out) {}
    // Replaces what is there. Throws Error where the state is not its own: then it is as after rolled_back(0, 0).
    virtual void restore(StateReader& in) {}
    // Throws DraftsEnd. Fills a draft: input.shape, part of it, or a tree of its own of at most input.room nodes.
    // Siblings carry distinct tokens. draft.tree stays valid until the next call.
    virtual void draft(const DraftInput& input, Draft& out) = 0;
};

}  // namespace medusa
