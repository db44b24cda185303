// Products with matrices of floats; see scalar.cpp for what is computed. Included inside the anonymous namespace of
// each file of an instruction set, after its standard headers, kernels/format.h and kernels/prefetch.inl.

// Groups of rows that stay in the second cache while all columns pass.
constexpr int64_t groups_together = 4;

// What `n` columns make of some rows of a group: `Isa::vectors(n)` registers full.
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
    Pace<2 * row, n <= 2 ? 2 * vectors * n : INT_MAX> pace;  // a product a cycle; more columns are slower for it
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
void run(const Format& format, const void* packed, int64_t columns, int64_t begin, int64_t end, const char* activations,
         size_t stride, int n, float* result, size_t result_stride, std::integer_sequence<int, before...>) {
    using Tile = void (*)(const uint8_t*, int64_t, const float* const*, const uint8_t*, float*, size_t);
    constexpr int widest = sizeof...(before), size = codes == Codes::f32 ? 4 : 2;
    static constexpr Tile tiles[] = {multiply_tile<Isa, codes, before + 1>...};
    static constexpr int rows[] = {Isa::vectors(before + 1) * Isa::lanes...};
    const int column_tiles = (n + widest - 1) / widest;
    const size_t group_bytes = format.group_bytes(columns);
    const auto* weights = static_cast<const uint8_t*>(packed);
    const uint8_t* last = weights + static_cast<size_t>(end) * group_bytes - 64;
    for (int64_t first = begin; first < end; first += groups_together) {
        for (int tile = 0; tile < column_tiles; ++tile) {
            const int column = n * tile / column_tiles, count = n * (tile + 1) / column_tiles - column;
            const float* x[widest];
            for (int c = 0; c < count; ++c) {
                x[c] = reinterpret_cast<const float*>(activations + static_cast<size_t>(column + c) * stride);
            }
            for (int64_t group = first; group < std::min(first + groups_together, end); ++group) {
                for (int row = 0; row < group_rows; row += rows[count - 1]) {
                    tiles[count - 1](weights + static_cast<size_t>(group) * group_bytes + row * size, columns, x, last,
                                     result + column * result_stride + group * group_rows + row, result_stride);
                }
            }
        }
    }
}

template <typename Isa>
void multiply_by(const Format& format, const void* packed, int64_t columns, int64_t begin, int64_t end,
                 const void* activations, size_t stride, int n, float* result, size_t result_stride) {
    constexpr auto tiles = std::make_integer_sequence<int, Isa::widest>{};
    const auto* x = static_cast<const char*>(activations);
    if (format.codes == Codes::f16) {
        run<Isa, Codes::f16>(format, packed, columns, begin, end, x, stride, n, result, result_stride, tiles);
    } else if (format.codes == Codes::bf16) {
        run<Isa, Codes::bf16>(format, packed, columns, begin, end, x, stride, n, result, result_stride, tiles);
    } else {
        run<Isa, Codes::f32>(format, packed, columns, begin, end, x, stride, n, result, result_stride, tiles);
    }
}
