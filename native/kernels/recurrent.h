// Operators of recurrent layers on our kernels, wherever their operands lie: the gated delta net, and reading and
// keeping states.
#pragma once

#include "ggml.h"

namespace ggml::cpu {
class tensor_traits;
}

namespace medusa::kernels {

struct Kernels;

// Of an operator that ours serves; nullptr: it stays with llama.cpp.
ggml::cpu::tensor_traits* recurrent_operator(const Kernels& kernels, const ggml_tensor* op);

}  // namespace medusa::kernels
