// The reference: what a packed matrix means, one number at a time. The fast kernels do the same operations on 16 rows
// at once, in the same order, and so give the same bits.
#include <cmath>
#include <cstring>

#include "kernels/format.h"

namespace medusa::kernels {
namespace {

float half_at(const uint8_t* scales, int lane) {
    ggml_fp16_t h;
    std::memcpy(&h, scales + 2 * lane, 2);
    return ggml_fp16_to_fp32(h);
}

int code_at(const Format& format, const uint8_t* cell, int lane, int i) {
    const int byte = 4 * lane + i % 4;
    if (format.codes == Codes::u8) return cell[64 * (i / 4) + byte];
    const int packed = cell[64 * (i % 16 / 4) + byte];
    int u = i < 16 ? packed & 15 : packed >> 4;
    if (format.codes == Codes::u5) u |= (cell[256 + byte] >> (i / 4) & 1) << 4;
    if (format.codes == Codes::u6) u |= (cell[256 + 64 * (i / 16) + byte] >> (2 * (i % 16 / 4)) & 3) << 4;
    return format.table ? format.table[u] + 128 : u;
}

// d and m of one row in one cell; d2 is that of the second half.
struct Scale {
    float d, d2, m;
};

Scale scale_at(const Format& format, const uint8_t* scales, int64_t cell, int lane) {
    const int64_t super = cell / cells_per_super, sub = cell % cells_per_super;
    const uint8_t* head = scales + static_cast<size_t>(super) * format.scale_bytes(cells_per_super);
    switch (format.scales) {
        case Scales::half: {
            const float d = half_at(scales + cell * 32, lane);
            return {d, d, 0};
        }
        case Scales::half_min: {
            const float d = half_at(scales + cell * 64, lane);
            return {d, d, half_at(scales + cell * 64 + 32, lane)};
        }
        case Scales::exponent: {
            const float d = std::ldexp(1.0f, scales[cell * 16 + lane] - 128);
            return {d, d, 0};
        }
        case Scales::super_min: {
            const uint8_t* own = head + 64 + sub * 32;
            const float d = half_at(head, lane) * static_cast<float>(own[lane]);
            return {d, d, -(half_at(head + 32, lane) * static_cast<float>(own[16 + lane]))};
        }
        case Scales::super_half: {
            const auto* own = reinterpret_cast<const int8_t*>(head + 32 + sub * 32);
            const float d = half_at(head, lane);
            return {d * static_cast<float>(own[lane]), d * static_cast<float>(own[16 + lane]), 0};
        }
        case Scales::super_cell: {
            const auto* own = reinterpret_cast<const int8_t*>(head + 32 + sub * 16);
            const float d = half_at(head, lane) * static_cast<float>(own[lane]);
            return {d, d, 0};
        }
    }
    return {};
}

void quantize(const Format& format, const float* x, int64_t columns, void* column) {
    int8_t* q = column_values(column);
    CellSums* sums = column_sums(column, columns);
    const bool halves = format.scales == Scales::super_half;
    for (int64_t cell = 0; cell < columns / cell_columns; ++cell, x += cell_columns, q += cell_columns) {
        float largest = 0;
        for (int i = 0; i < cell_columns; ++i) {
            const float size = std::fabs(x[i]);
            if (!(size <= largest)) largest = size;  // a NaN stays
            if (std::isnan(largest)) break;
        }
        const float d = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
        int32_t sum[2] = {0, 0};
        for (int i = 0; i < cell_columns; ++i) {
            const float scaled = x[i] * inverse;
            q[i] = std::fabs(scaled) <= 127.5f ? static_cast<int8_t>(std::nearbyint(scaled)) : 0;
            sum[i / 16] += q[i];
        }
        const int32_t all = sum[0] + sum[1];
        sums[cell].d = d;
        sums[cell].all = d * static_cast<float>(all);
        sums[cell].start[0] = -format.zero * (halves ? sum[0] : all);
        sums[cell].start[1] = halves ? -format.zero * sum[1] : 0;
    }
}

void multiply(const Format& format, const void* packed, int64_t columns, int64_t begin, int64_t end,
              const void* activations, size_t stride, int n, float* result, size_t result_stride) {
    const int64_t cells = columns / cell_columns;
    const bool has_min = format.scales == Scales::half_min || format.scales == Scales::super_min;
    const bool halves = format.scales == Scales::super_half;
    for (int64_t group = begin; group < end; ++group) {
        const uint8_t* codes = static_cast<const uint8_t*>(packed) + group * format.group_bytes(columns);
        const uint8_t* scales = codes + static_cast<size_t>(cells) * format.code_bytes();
        for (int c = 0; c < n; ++c) {
            const auto* column = static_cast<const char*>(activations) + c * stride;
            const auto* q = reinterpret_cast<const int8_t*>(column);
            const CellSums* sums = column_sums(column, columns);
            for (int lane = 0; lane < group_rows; ++lane) {
                float acc = 0;
                for (int64_t cell = 0; cell < cells; ++cell) {
                    int32_t dot[2] = {sums[cell].start[0], sums[cell].start[1]};
                    for (int i = 0; i < cell_columns; ++i) {
                        const int u = code_at(format, codes + static_cast<size_t>(cell) * format.code_bytes(), lane, i);
                        dot[halves ? i / 16 : 0] += u * q[cell * cell_columns + i];
                    }
                    const Scale scale = scale_at(format, scales, cell, lane);
                    acc = std::fma(static_cast<float>(dot[0]), scale.d * sums[cell].d, acc);
                    if (halves) acc = std::fma(static_cast<float>(dot[1]), scale.d2 * sums[cell].d, acc);
                    if (has_min) acc = std::fma(scale.m, sums[cell].all, acc);
                }
                result[c * result_stride + group * group_rows + lane] = acc;
            }
        }
    }
}

}  // namespace

const Kernels scalar = {"scalar", quantize, multiply, attend_scalar, delta_net_scalar};

}  // namespace medusa::kernels
