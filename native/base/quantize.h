// Quantization of single matrices, through ggml.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ggml.h"

namespace medusa {

// out.size() numbers from whole blocks of a float type, or of a quantized one that ggml can convert back.
void to_floats(ggml_type type, const void* data, std::span<float> out);

// `values` [rows, columns], row by row, as ggml type `type` ("f16", "q8_0", ...). Throws Error for an unknown type, one
// that needs an importance matrix, or columns that do not divide into its blocks.
std::vector<uint8_t> quantize_rows(const std::string& type, std::span<const float> values, int64_t columns);

}  // namespace medusa
