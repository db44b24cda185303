// Products with packed matrices of any format and any number of rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace medusa::kernels {

struct Format;
struct Kernels;

// Turns `columns` floats into an activation column of column_bytes().
void prepare(const Kernels& kernels, const Format& format, const float* x, int64_t columns, void* column);

// Kernels::multiply() or multiply_floats() with a matrix of this many rows, which need not fill the last group.
void multiply(const Kernels& kernels, const Format& format, const void* packed, int64_t columns, int64_t rows,
              int64_t begin, int64_t end, const void* activations, size_t stride, int n, float* result,
              size_t result_stride);

}  // namespace medusa::kernels
