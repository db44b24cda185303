// Quantization of whole base models through libllama, its mixed recipes included.
#pragma once

#include <functional>
#include <string>

namespace medusa {

// Told before each tensor, counted from 1.
using OnQuantized = std::function<void(int tensor, int tensors)>;

struct QuantizeParams {
    int file_type = 0;  // llama_ftype, GGUF's general.file_type
    int threads = 1;
    bool allow_requantize = false;
    bool pure = false;  // every matrix in the file type's own type, where its rows fill the blocks
};

// Writes `target`, the base model of `source` in another file type. Not interruptible. Throws Error with libllama's
// reason.
void quantize_model(const std::string& source, const std::string& target, const QuantizeParams& params,
                    const OnQuantized& on_tensor);

}  // namespace medusa
