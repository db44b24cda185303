// Products with matrices of floats; see scalar.cpp for what is computed. Each file has its own copy.
#pragma once

#include <climits>
#include <utility>

#include "kernels/prefetch.inl"

namespace medusa::kernels {
namespace {

// Groups of rows that stay in the second-level cache while all columns pass.
constexpr int64_t groups_together = 4;

// Multiplies some rows of a group with `n` columns: `Isa::vectors(n)` registers full.
template <typename Isa, Codes codes, int n>
void multiply_tile(const uint8_t* weights, int64_t columns, const float* const* columns_of_x, const uint8_t* last,
                   float* result, size_t result_stride) {
    using Vector = typename Isa::Vector;
    constexpr int vectors = Isa::vectors(n), size = codes == Codes::f32 ? 4 : 2, row = group_rows * size;
    const float* x[n];
    for (int c = 0; c < n; ++c) x[c] = columns_of_x[c];
    Vector even[n][vectors], odd[n][vectors];
    for (int c = 0; c < n; ++c) {
        for (int v = 0; v < vectors; ++v) even[c][v] = odd[c][v] = Isa::zero();
    }
    Pace<2 * row, n <= 2 ? 2 * vectors * n : INT_MAX> pace;  // one product per cycle; more columns are slower for it
    for (int64_t i = 0; i < columns; i += 2, weights += pace.one() * 2 * row) {
        for (int line = 0; line < 2 * row; line += 64) prefetch(weights + line, last);
        Vector w0[vectors], w1[vectors];
        for (int v = 0; v < vectors; ++v) {
            w0[v] = Isa::template load<codes>(weights + v * Isa::lanes * size);
            w1[v] = Isa::template load<codes>(weights + row + v * Isa::lanes * size);
        }
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) {
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
                even[c][v] = Isa::add_product(w0[v], x[c] + i, even[c][v]);
                odd[c][v] = Isa::add_product(w1[v], x[c] + i + 1, odd[c][v]);
            }
        }
    }
    for (int c = 0; c < n; ++c, result += result_stride) {
        for (int v = 0; v < vectors; ++v) Isa::store(result + v * Isa::lanes, Isa::sum(even[c][v], odd[c][v]));
    }
}

template <typename Isa, Codes codes, int... before>
void run(const Job& job, std::integer_sequence<int, before...>) {
    using Tile = void (*)(const uint8_t*, int64_t, const float* const*, const uint8_t*, float*, size_t);
    constexpr int widest = sizeof...(before), size = codes == Codes::f32 ? 4 : 2;
    static constexpr Tile tiles[] = {multiply_tile<Isa, codes, before + 1>...};
    static constexpr int rows[] = {Isa::vectors(before + 1) * Isa::lanes...};
    const int column_tiles = (job.n + widest - 1) / widest;
    const uint8_t* last = job.last_line();
    for (int64_t first = job.begin; first < job.end; first += groups_together) {
        for (int tile = 0; tile < column_tiles; ++tile) {
            const int column = job.n * tile / column_tiles, count = job.n * (tile + 1) / column_tiles - column;
            const float* x[widest];
            for (int c = 0; c < count; ++c) x[c] = reinterpret_cast<const float*>(job.column(column + c));
            for (int64_t group = first; group < std::min(first + groups_together, job.end); ++group) {
                float* result = job.result + column * job.result_stride + group * group_rows;
                for (int row = 0; row < group_rows; row += rows[count - 1]) {
                    tiles[count - 1](job.group(group) + row * size, job.columns, x, last, result + row,
                                     job.result_stride);
                }
            }
        }
    }
}

template <typename Isa>
void multiply_by(const Job& job) {
    constexpr auto tiles = std::make_integer_sequence<int, Isa::widest>{};
    if (job.format.codes == Codes::f16) {
        run<Isa, Codes::f16>(job, tiles);
    } else if (job.format.codes == Codes::bf16) {
        run<Isa, Codes::bf16>(job, tiles);
    } else {
        run<Isa, Codes::f32>(job, tiles);
    }
}

}  // namespace
}  // namespace medusa::kernels
