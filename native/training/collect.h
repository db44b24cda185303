// Parallel generation for training: many continuations at once, with the hidden states they were drawn from.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "llama/model.h"
#include "llama/pass_threads.h"

namespace medusa {

struct CollectParams {
    int max_tokens = 256;  // per continuation
    int parallel = 32;
    uint64_t seed = 0;
    Threads threads;
    bool hidden = true;
};

// One finished continuation: its tokens and, row by row, the post-norm state (half precision) each was drawn from.
struct Continuation {
    size_t index = 0;
    std::vector<Token> tokens;
    std::vector<uint16_t> states;  // [tokens][n_embd], IEEE half
};

// Returns false to end the run.
using OnContinuation = std::function<bool(const Continuation&)>;
// Called after each token of all continuations; false ends the run once those under way are handed over as they are.
using OnCollected = std::function<bool(uint64_t tokens)>;
// Called after every partial_interval tokens of a continuation; false ends that continuation there.
using OnPartial = std::function<bool(const Continuation&)>;
inline constexpr size_t partial_interval = 32;

// Generates one continuation per prompt, at temperatures[i] (0: argmax; otherwise top-k 40, top-p 0.95, min-p 0.05).
// A continuation ends with its end-of-generation token or after max_tokens. Up to batch-width numerics, a prompt's
// result depends only on the seed and its index, not on the order of completion.
void collect(std::shared_ptr<LlamaModel> model, const std::vector<std::vector<Token>>& prompts,
             const std::vector<float>& temperatures, const CollectParams& params, const OnContinuation& on_done,
             const OnCollected& on_progress, const OnPartial& on_partial);

}  // namespace medusa
