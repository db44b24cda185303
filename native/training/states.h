// What a model computes for a given text: states after a layer, states after the final norm, its likeliest tokens.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "llama/context.h"

namespace medusa {

struct States {
    size_t tokens = 0;
    std::vector<float> after_layers;  // [tokens][tapped layers][n_embd]; empty where none are
    // If outputs were requested, else empty; of the tokens that have one:
    std::vector<float> post_norm;    // [outputs][n_embd]
    std::vector<Token> best;         // the argmax after each token
    std::vector<float> last_logits;  // after the last token
};

// Reads one text after another, each from an empty cache.
class StatesReader {
  public:
    // longest: most tokens in a text. tap_layers: from 0, not the last. outputs: the states after the final norm and
    // what follows from them.
    StatesReader(std::shared_ptr<LlamaModel> model, int longest, std::vector<int> tap_layers, bool outputs,
                 Threads threads);
    // outputs_from: the first token that has an output; each then pays for the output matrix.
    States read(std::span<const Token> tokens, int outputs_from = 0);

  private:
    void keep(std::span<const BatchRow> rows, States& out);

    bool tapped_, outputs_;
    int longest_;
    LlamaContext context_;
};

}  // namespace medusa
