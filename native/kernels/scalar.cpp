// The reference: what a packed matrix means, one number at a time. The fast kernels do the same operations on 16 rows
// at once, in the same order, and so give the same bits.
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/format.h"

namespace medusa::kernels {
namespace {

float half_at(const uint8_t* scales, int64_t lane) {
    ggml_fp16_t h;
    std::memcpy(&h, scales + 2 * lane, 2);
    return ggml_fp16_to_fp32(h);
}

int code_at(const Format& format, const uint8_t* cell, int lane, int i) {
    const int byte = 4 * lane + i % 4;
    if (format.codes == Codes::u8) return cell[64 * (i / 4) + byte];
    const auto pair = [&](const uint8_t* plane) { return plane[64 * (i / 16) + byte] >> (2 * (i % 16 / 4)) & 3; };
    const auto bit = [&](const uint8_t* plane) { return plane[byte] >> (i / 4) & 1; };
    if (format.codes == Codes::u2) return pair(cell);
    if (format.codes == Codes::u3) return pair(cell) | bit(cell + 128) << 2;
    const int packed = cell[64 * (i % 16 / 4) + byte];
    int u = i < 16 ? packed & 15 : packed >> 4;
    if (format.codes == Codes::u5) u |= bit(cell + 256) << 4;
    if (format.codes == Codes::u6) u |= pair(cell + 256) << 4;
    return format.table ? format.table[u] + 128 : u;
}

// d and m of one row in one cell; d2 and m2 belong to the second half.
struct Scale {
    float d, d2, m, m2 = 0;
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
        case Scales::super_half_min: {
            const uint8_t* own = head + 64 + sub * 32;
            const float d = half_at(head, lane), min = half_at(head + 32, lane);
            const int first = own[lane], second = own[16 + lane];
            return {d * static_cast<float>(first & 15), d * static_cast<float>(second & 15),
                    -(min * static_cast<float>(first >> 4)), -(min * static_cast<float>(second >> 4))};
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
        case Scales::none:
            break;
    }
    return {};
}

void quantize(const Format& format, const float* x, int64_t columns, void* column) {
    int8_t* q = column_values(column);
    CellSums* sums = column_sums(column, columns);
    const bool halves = has_halves(format.scales);
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

void multiply(const Job& job) {
    const Format& format = job.format;
    const int64_t cells = job.columns / cell_columns;
    const bool halves = has_halves(format.scales), mins_of_halves = halves && has_min(format.scales);
    for (int64_t group = job.begin; group < job.end; ++group) {
        const uint8_t *codes = job.group(group), *scales = codes + static_cast<size_t>(cells) * format.code_bytes();
        for (int c = 0; c < job.n; ++c) {
            const auto* q = reinterpret_cast<const int8_t*>(job.column(c));
            const CellSums* sums = column_sums(job.column(c), job.columns);
            for (int lane = 0; lane < group_rows; ++lane) {
                float acc = 0;
                for (int64_t cell = 0; cell < cells; ++cell) {
                    const int32_t* start = sums[cell].start;
                    int32_t dot[2] = {mins_of_halves ? 0 : start[0], mins_of_halves ? 0 : start[1]};
                    for (int i = 0; i < cell_columns; ++i) {
                        const int u = code_at(format, codes + static_cast<size_t>(cell) * format.code_bytes(), lane, i);
                        dot[halves ? i / 16 : 0] += u * q[cell * cell_columns + i];
                    }
                    const Scale scale = scale_at(format, scales, cell, lane);
                    acc = std::fma(static_cast<float>(dot[0]), scale.d * sums[cell].d, acc);
                    if (halves) acc = std::fma(static_cast<float>(dot[1]), scale.d2 * sums[cell].d, acc);
                    if (mins_of_halves) {
                        acc = std::fma(scale.m, sums[cell].d * static_cast<float>(start[0]), acc);
                        acc = std::fma(scale.m2, sums[cell].d * static_cast<float>(start[1]), acc);
                    } else if (has_min(format.scales)) {
                        acc = std::fma(scale.m, sums[cell].all, acc);
                    }
                }
                job.result[c * job.result_stride + group * group_rows + lane] = acc;
            }
        }
    }
}

float float_at(Codes codes, const uint8_t* weights, int64_t i) {
    if (codes == Codes::f16) return half_at(weights, i);
    if (codes == Codes::bf16) {
        uint16_t bits;
        std::memcpy(&bits, weights + 2 * i, sizeof(bits));
        return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    }
    float value;
    std::memcpy(&value, weights + 4 * i, sizeof(value));
    return value;
}

// Even and odd columns are added up separately.
void multiply_floats(const Job& job) {
    for (int64_t group = job.begin; group < job.end; ++group) {
        const uint8_t* weights = job.group(group);
        for (int c = 0; c < job.n; ++c) {
            const auto* x = reinterpret_cast<const float*>(job.column(c));
            for (int lane = 0; lane < group_rows; ++lane) {
                float sum[2] = {};
                for (int64_t i = 0; i < job.columns; ++i) {
                    sum[i % 2] = std::fma(float_at(job.format.codes, weights, i * group_rows + lane), x[i], sum[i % 2]);
                }
                job.result[c * job.result_stride + group * group_rows + lane] = sum[0] + sum[1];
            }
        }
    }
}

}  // namespace

const Kernels scalar = {"scalar", quantize, multiply, multiply_floats, attend_scalar, delta_net_scalar};

}  // namespace medusa::kernels
