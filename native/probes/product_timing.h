// How long the matrix products of a loaded model take on their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama/model.h"

namespace medusa {

struct ProductTimes {
    uint64_t bytes = 0;      // of all matrices of the type, in the type's own layout
    uint64_t products = 0;   // multiply-adds for one column
    std::vector<double> ms;  // per pass over all of them
};

// Multiplies every 2-D matrix of `type` with `columns` random columns, where the matrices lie and with the kernels that
// a forward pass uses, `repeats` times after one warm-up. Throws Error if the model has none or is not on the CPU.
ProductTimes time_products(const LlamaModel& model, const std::string& type, int columns, int repeats, int threads);

}  // namespace medusa
