// How a token is drawn: logits through the sampler chain, and one random number per emitted token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/common.h"
#include "decoding/in_graph.h"

namespace medusa {

struct SamplingParams {
    // Below this, the likeliest token is taken: dividing logits by less could overflow.
    static constexpr float lowest_temperature = 1e-5f;

    float temperature = 0.0f;
    int top_k = 40;       // <= 0: off
    float top_p = 0.95f;  // >= 1: off
    float min_p = 0.05f;  // <= 0: off
    float repeat_penalty = 1.0f;
    float frequency_penalty = 0.0f;  // taken off a token's logit each time it occurs
    float presence_penalty = 0.0f;   // the same, but once
    int repeat_last_n = 64;          // how many tokens penalties look back; < 0: all
    std::vector<std::pair<Token, float>> logit_bias;
    uint64_t seed = 0;

    bool is_greedy() const { return !(temperature >= lowest_temperature); }
    bool penalizes() const { return repeat_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f; }
    bool changes_logits() const { return penalizes() || !logit_bias.empty(); }
    // Throws Error where a number cannot be used.
    void check() const;
};

struct Candidate {
    Token token;
    float p;
};

// Logits that are not numbers, or infinite where a distribution is needed: weights are damaged, or a sum overflowed.
class BadLogits : public Error {
  public:
    BadLogits() : Error("the model's output is not a number") {}
};

// The state of a sampler chain along one path of tokens. Later members of the chain (grammar) need nothing more than
// these three verbs: apply, accept, clone.
class Chain {
  public:
    virtual ~Chain() = default;
    // The distribution the next token is drawn from: candidates of non-zero probability in token order, summing to 1,
    // at least one. With greedy params, one candidate: the argmax (ties: the lowest token). Throws BadLogits.
    virtual void apply(std::span<const float> logits, std::vector<Candidate>& out) = 0;
    // The same from ranked tokens instead of a whole row: for chains without penalties and biases, for which no further
    // tokens count.
    virtual void apply(std::span<const RankedToken> ranked, std::vector<Candidate>& out) = 0;
    // Moves the state past `token`.
    virtual void accept(Token token) = 0;
    virtual std::unique_ptr<Chain> clone() const = 0;
};

// Index of the largest value (ties: the lowest). Throws BadLogits where there is no number.
Token argmax(std::span<const float> logits);

// Indices of the k largest values, largest first (ties: the lowest index). Fewer when there are fewer numbers.
void top_indices(std::span<const float> values, int k, std::vector<int>& out);

// Uniform in [0, 1): a pure function of (seed, index), so that the n-th emitted token uses the n-th number whether or
// not it was drafted.
double uniform(uint64_t seed, uint64_t index);

// The numbers that a step takes besides those for its tokens: a separate sequence for each seed, step and purpose.
class StepRandom {
  public:
    enum class Purpose : uint64_t { drafts = 1, acceptance = 2 };

    // emitted: tokens emitted before the step.
    StepRandom(uint64_t seed, uint64_t emitted, Purpose purpose);
    double next() { return uniform(key_, index_++); }

  private:
    uint64_t key_, index_ = 0;
};

// Inverse of the cumulative distribution in token order, for u in [0, 1). In token order a tiny change in the
// probabilities moves the result only when u lies next to a boundary.
Token draw(std::span<const Candidate> distribution, double u);

// How likely the model finds a token: its own distribution, before temperature, penalties and biases.
struct Chance {
    Token token;
    double logprob;  // ln p
};

// For `token`, and for the `most` likeliest tokens, likeliest first (ties: the lowest), by softmax(logits).
struct Chances {
    double logprob = 0.0;
    std::vector<Chance> top;
};
Chances chances_of(std::span<const float> logits, Token token, int most);

}  // namespace medusa
