// How likely the model finds tokens: its own distribution, before temperature, penalties and biases.
#pragma once

#include <span>
#include <vector>

#include "base/common.h"

namespace medusa {

struct Chance {
    Token token;
    double logprob;  // ln p
};

// Of `token`, and of the `most` likeliest tokens, likeliest first (ties: the lowest), by softmax(logits).
struct Chances {
    double logprob = 0.0;
    std::vector<Chance> top;
};
Chances chances_of(std::span<const float> logits, Token token, int most);

}  // namespace medusa
