#include "kernels/product.h"

#include <algorithm>
#include <cstring>

#include "kernels/format.h"

namespace medusa::kernels {

void prepare(const Kernels& kernels, const Format& format, const float* x, int64_t columns, void* column) {
    if (!format.is_float()) return kernels.quantize(format, x, columns, column);
    std::memcpy(column, x, column_bytes(format, columns));
}

void multiply(const Kernels& kernels, const Format& format, const void* packed, int64_t columns, int64_t rows,
              int64_t begin, int64_t end, const void* activations, size_t stride, int n, float* result,
              size_t result_stride) {
    const Multiply by = format.is_float() ? kernels.multiply_floats : kernels.multiply;
    const int64_t whole = std::min(end, rows / group_rows);
    const Job job{format, packed, columns, begin, whole, activations, stride, n, result, result_stride};
    if (begin < whole) by(job);
    if (whole >= end) return;
    // The last group's lanes without rows have no place in the result.
    constexpr int most = 32;
    const auto left = static_cast<size_t>(rows - whole * group_rows);
    for (int c = 0; c < n; c += most) {
        float lanes[most * group_rows];
        const int count = std::min(most, n - c);
        by({format, job.group(whole), columns, 0, 1, job.column(c), stride, count, lanes, group_rows});
        for (int i = 0; i < count; ++i) {
            std::memcpy(result + (c + i) * result_stride + whole * group_rows, lanes + i * group_rows,
                        left * sizeof(float));
        }
    }
}

}  // namespace medusa::kernels
