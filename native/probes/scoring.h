// How likely a model finds a given text, and what it would have said instead, at a chosen width of its forward passes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "llama/model.h"
#include "llama/pass_threads.h"

namespace medusa {

struct Scores {
    std::vector<Token> best;    // the argmax after each token
    std::vector<double> costs;  // -ln p of each token but the first, given those before it
};

// Decodes `tokens` from an empty cache, `width` at a time (the last pass takes what is left).
Scores score(std::shared_ptr<LlamaModel> model, std::span<const Token> tokens, int width, Threads threads);

}  // namespace medusa
