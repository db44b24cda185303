// A tensor that a file of draft heads has to have.
#pragma once

#include <string>
#include <vector>

#include "base/gguf_file.h"

namespace medusa {

// A tensor of the file. shape: in ggml's order; a vector is to be F32, a matrix of floats or quantized. Throws Error
// where it is missing or different.
const TensorInfo& expect_tensor(const GgufFile& file, const std::string& name, const std::vector<int64_t>& shape);

}  // namespace medusa
