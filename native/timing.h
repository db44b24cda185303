// How long the model itself takes: what benchmarks and `tune` ask before they choose a tree.
#pragma once

#include <memory>
#include <vector>

#include "llama_api.h"

namespace medusa {

struct TimingParams {
    int position = 64;  // tokens in the cache
    int repeats = 5;
    int threads = 1;
};

// Milliseconds of `repeats` forward passes over `width` tokens behind `position` others: as a tree of one root and
// width - 1 leaves (at most Tree::max_size), or as a piece of a prompt.
std::vector<double> time_verify(std::shared_ptr<LlamaModel> model, int width, const TimingParams& params);
std::vector<double> time_prefill(std::shared_ptr<LlamaModel> model, int width, const TimingParams& params);

}  // namespace medusa
