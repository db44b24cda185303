// ggml's fused attention on our kernels, wherever its operands lie.
#pragma once

#include <string>

#include "ggml.h"

namespace ggml::cpu {
class tensor_traits;
}

namespace medusa::kernels {

struct Kernels;

// What became of the fused attention operators that this thread has planned.
struct AttentionUse {
    int served = 0;
    int left = 0;        // to llama.cpp
    std::string reason;  // why the last of them was
};
// Since attention_use() was taken the last time on this thread, or since it began.
const AttentionUse& attention_use();
AttentionUse take_attention_use();

// Whether attention over a cache of these types and head sizes runs on the kernels.
bool attention_takes(const Kernels& kernels, ggml_type key, ggml_type value, int64_t key_size, int64_t value_size);

// The operator, which leaves to llama.cpp what the kernels do not take.
ggml::cpu::tensor_traits* flash_attention(const Kernels& kernels);

}  // namespace medusa::kernels
