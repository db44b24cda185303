// Operators of llama.cpp's graphs on our kernels, wherever their operands lie.
#pragma once

#include <string>

#include "ggml.h"

namespace medusa::ggml_cpu {
class tensor_traits;
}

namespace medusa::kernels {

struct Kernels;

// --- fused attention

// What happened to the fused attention operators that this thread has planned.
struct AttentionUse {
    int served = 0;
    int left = 0;        // to llama.cpp
    std::string reason;  // why the last of them was
};
// Since the last attention_use() on this thread, or since the thread began.
const AttentionUse& attention_use();
AttentionUse take_attention_use();

// Whether attention over a cache of these types and head sizes runs on the kernels.
bool attention_takes(const Kernels& kernels, ggml_type key, ggml_type value, int64_t key_size, int64_t value_size);

// The operator; it leaves to llama.cpp what the kernels do not take.
ggml_cpu::tensor_traits* flash_attention(const Kernels& kernels);

// --- recurrent layers: the gated delta net, and reading and keeping states

// For an operator that we serve; nullptr: it stays with llama.cpp.
ggml_cpu::tensor_traits* recurrent_operator(const Kernels& kernels, const ggml_tensor* op);

// --- products with weights that no kernel takes, by llama.cpp's own dot products of a row and a column. llama.cpp has
// other loops for passes over several tokens, whose bits differ from those for one: here each column is computed alone.

// Wider passes are prompts; they are left to llama.cpp.
inline constexpr int64_t dots_most_columns = 64;

// nullptr: not for this operator.
ggml_cpu::tensor_traits* dot_products(const ggml_tensor* op);

}  // namespace medusa::kernels
