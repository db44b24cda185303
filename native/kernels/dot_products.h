// Products with weights that no kernel takes, by llama.cpp's own dot products of a row and a column. llama.cpp has
// other loops for passes over several tokens, whose bits differ from those for one: here each column is computed alone.
#pragma once

#include "ggml.h"

namespace ggml::cpu {
class tensor_traits;
}

namespace medusa::kernels {

// Wider passes are prompts, which are left to llama.cpp.
inline constexpr int64_t dots_most_columns = 64;

// nullptr: not for this operator.
ggml::cpu::tensor_traits* dot_products(const ggml_tensor* op);

}  // namespace medusa::kernels
