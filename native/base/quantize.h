// Quantisation: whole base models through libllama (its mixed recipes included), single matrices through ggml.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ggml.h"

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

// out.size() numbers from whole blocks of a float type, or of a quantised one that ggml can take back.
void to_floats(ggml_type type, const void* data, std::span<float> out);

// `values` [rows, columns], row by row, as ggml type `type` ("f16", "q8_0", ...). Throws Error for an unknown type, one
// that needs an importance matrix, or columns that its blocks do not divide.
std::vector<uint8_t> quantize_rows(const std::string& type, std::span<const float> values, int64_t columns);
// The inverse.
std::vector<float> dequantize_rows(const std::string& type, std::span<const uint8_t> bytes, int64_t columns);

}  // namespace medusa
