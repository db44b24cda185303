// 16 rows times up to 16 activation columns with AMX's products of 8-bit tiles. See scalar.cpp for what is computed.
// Compiled with AVX512 F, BW, DQ, VL, VNNI and AMX; nothing here may run before select_kernels() has seen them.
//
// A cell's codes, unpacked to signed bytes, are the right operand of a tile product just as they lie in memory: 8 tile
// rows of 16 weight rows x 4 columns. The left operand has a row for each activation column. The products are exact
// integers; the floating-point operations on them are the same as elsewhere, in the same order.
#include "kernels/avx512.inl"

namespace medusa::kernels {
namespace {

constexpr int most_columns = 16;  // of a tile
// Up to this many columns fill half a tile: a product then takes two units of the weights at once, the first one for
// the upper half of its rows, the second one for the lower half. The left operand has zeros where they do not meet.
constexpr int half_tile = most_columns / 2;
// Fewer columns are left to avx512vnni, which gives the same bits and is faster there: measured, most of all for types
// that need two products for a cell.
int fewest_columns(const Format& format) {
    return format.scales == Scales::super_half ? 12 : 8;
}
// With more columns than a tile has, weights are unpacked once for all columns, this many cells at a time.
constexpr int block_cells = 32;

// A unit is the run of columns whose products may be added before they are scaled: a cell, or half of one.
template <Scales scales>
constexpr int units_per_cell = has_halves(scales) ? 2 : 1;

// Works on pairs of cells. What all groups of rows need from up to 16 activation columns:
struct alignas(64) ActivationPair {
    int8_t q[16 * 2 * cell_columns];  // left operands: one for each product
    float d[2][most_columns], all[2][most_columns];
};
constexpr size_t code_pair_bytes = 2 * 512;
constexpr size_t product_floats = 16 * 16;
constexpr int products_per_pair = 4;  // at most

struct alignas(64) Line {
    uint8_t bytes[64];
};

// Memory of one thread, kept between calls.
struct Scratch {
    std::vector<ActivationPair> activations;
    std::vector<Line> codes;     // unpacked pairs of cells
    std::vector<Line> products;  // of two pairs of cells
};

Scratch& scratch_of_thread() {
    thread_local Scratch scratch;
    return scratch;
}

struct alignas(64) TileConfiguration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tile registers, which the intrinsics require as literal numbers: 0..3 products, 4 the left operand, 5 the right one.

// GCC 12's intrinsic declares 8 of the 64 bytes that the instruction reads, and loses stores to the rest.
void configure_tiles(int rows, int depth) {
    TileConfiguration configuration;
    for (int i = 0; i < products_per_pair; ++i) {
        configuration.rows[i] = static_cast<uint8_t>(rows);
        configuration.row_bytes[i] = 64;
    }
    configuration.rows[4] = static_cast<uint8_t>(rows);
    configuration.row_bytes[4] = static_cast<uint16_t>(depth);
    configuration.rows[5] = static_cast<uint8_t>(depth / 4);
    configuration.row_bytes[5] = 64;
    __asm__ volatile("ldtilecfg %0" : : "m"(configuration));
}

// Columns first..first+n-1, cells begin..begin+cells-1, as left operands.
template <Scales scales>
void arrange(const Job& job, int first, int n, int64_t begin, int64_t cells, bool halved, ActivationPair* pairs) {
    constexpr int units = units_per_cell<scales>, unit_columns = cell_columns / units;
    const int depth = halved ? 2 * unit_columns : unit_columns;
    std::memset(pairs, 0, static_cast<size_t>((cells + 1) / 2) * sizeof(ActivationPair));
    for (int c = 0; c < n; ++c) {
        const char* base = job.column(first + c);
        const auto* q = reinterpret_cast<const int8_t*>(base) + begin * cell_columns;
        const CellSums* sums = column_sums(base, job.columns) + begin;
        for (int64_t cell = 0; cell < cells; ++cell) {
            ActivationPair& pair = pairs[cell / 2];
            const int side = static_cast<int>(cell % 2);
            pair.d[side][c] = sums[cell].d;
            pair.all[side][c] = sums[cell].all;
            for (int half = 0; half < units; ++half, q += unit_columns) {
                const int unit = side * units + half;
                int8_t* to = halved
                                 ? pair.q + (unit / 2 * 16 + unit % 2 * half_tile + c) * depth + unit % 2 * unit_columns
                                 : pair.q + (unit * 16 + c) * depth;
                std::memcpy(to, q, unit_columns);
            }
        }
    }
}

// What multiply_tile() reads and writes.
struct Tile {
    const uint8_t *code, *scale, *last;
    size_t far;  // how many bytes ahead weights are prefetched
    int64_t cells;
    const ActivationPair* activations;
    uint8_t* codes;  // unpacked pairs of cells, pair p at p & code_mask
    int64_t code_mask;
    bool unpack;  // otherwise they are already there
    bool resume;  // the result holds the sum over earlier cells
    int32_t* products;
    __m512i table, zero;
    float* result;
    size_t result_stride;
    int n;  // columns to store
};

template <Codes codes, Scales scales, bool has_table>
MEDUSA_INLINE void unpack_pair(const Tile& tile, int64_t pair) {
    constexpr Format sizes{GGML_TYPE_F32, codes, scales, 0, nullptr};
    uint8_t* to = tile.codes + (pair & tile.code_mask) * code_pair_bytes;
    for (int64_t cell = 2 * pair; cell < std::min(2 * pair + 2, tile.cells); ++cell, to += code_pair_bytes / 2) {
        const uint8_t* code = tile.code + cell * sizes.code_bytes();
        for (size_t line = 0; line < sizes.code_bytes(); line += 64) prefetch(code + line, tile.last, tile.far);
        __m512i w[words];
        load_codes<codes, has_table>(code, tile.table, w);
        for (int j = 0; j < words; ++j) {
            if constexpr (!has_table && !has_min(scales)) {
                w[j] = _mm512_sub_epi8(w[j], tile.zero);
            }
            _mm512_store_si512(to + 64 * j, w[j]);
        }
    }
}

// Tile products of a pair of cells: 1, 2 or 4.
template <Scales scales, int n>
constexpr int products_of_pair = 2 * units_per_cell<scales> / (n <= half_tile ? 2 : 1);

// Starts the products of a pair of cells, in tiles 0, 1, ...
template <Scales scales, int n>
inline void multiply_pair(const Tile& tile, int64_t pair) {
    constexpr int products = products_of_pair<scales, n>, depth = 2 * cell_columns / products;
    const uint8_t* right = tile.codes + (pair & tile.code_mask) * code_pair_bytes;
    const int8_t* left = tile.activations[pair].q;
    // The intrinsics for loads do not tell the compiler that they read memory.
    __asm__ volatile("" : : : "memory");
#define MEDUSA_MULTIPLY(i)                              \
    if constexpr (i < products) {                       \
        _tile_loadd(5, right + (i) * 16 * depth, 64);   \
        _tile_loadd(4, left + (i) * 16 * depth, depth); \
        _tile_zero(i);                                  \
        _tile_dpbssd(i, 4, 5);                          \
    }
    MEDUSA_MULTIPLY(0)
    MEDUSA_MULTIPLY(1)
    MEDUSA_MULTIPLY(2)
    MEDUSA_MULTIPLY(3)
#undef MEDUSA_MULTIPLY
}

template <Scales scales, int n>
inline void store_products(int32_t* to) {
    constexpr int products = products_of_pair<scales, n>;
    _tile_stored(0, to, 64);
    if constexpr (products > 1) _tile_stored(1, to + product_floats, 64);
    if constexpr (products > 2) _tile_stored(2, to + 2 * product_floats, 64);
    if constexpr (products > 3) _tile_stored(3, to + 3 * product_floats, 64);
}

// One group of rows times n columns, some cells.
// Nothing waits for a product or a store: a round stores what the previous round multiplied, multiplies the next pair,
// and adds up what the previous round stored.
template <Codes codes, Scales scales, bool has_table, int n>
void multiply_tile(const Tile& tile) {
    constexpr bool halved = n <= half_tile;
    constexpr int units = units_per_cell<scales>;
    __m512 acc[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) acc[c] = _mm512_setzero_ps();
    if (tile.resume) {
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) {
            if (c < tile.n) acc[c] = _mm512_loadu_ps(tile.result + c * tile.result_stride);
        }
    }
    Scale head{};
    const uint8_t* scale = tile.scale;
    const int64_t pairs = (tile.cells + 1) / 2;
    if (tile.unpack) unpack_pair<codes, scales, has_table>(tile, 0);
    for (int64_t pair = 0; pair < pairs + 2; ++pair) {
        const auto products_at = [&](int64_t p) { return tile.products + p % 2 * products_per_pair * product_floats; };
        if (pair > 0 && pair <= pairs) store_products<scales, n>(products_at(pair - 1));
        if (pair < pairs) multiply_pair<scales, n>(tile, pair);
        if (tile.unpack && pair + 1 < pairs) unpack_pair<codes, scales, has_table>(tile, pair + 1);
        if (pair < 2) continue;
        const int64_t done = pair - 2;
        const int32_t* products = products_at(done);
        const ActivationPair& activations = tile.activations[done];
        if constexpr (head_bytes(scales) != 0) {
            if (done % (cells_per_super / 2) == 0) {
                head = load_head<scales>(scale);
                scale += head_bytes(scales);
            }
        }
        for (int side = 0; side < 2 && 2 * done + side < tile.cells; ++side) {
            const Scale s = load_scale<scales>(head, scale);
            if (tile.unpack) prefetch(scale, tile.last, tile.far);
            scale += own_bytes(scales);
            const float *d = activations.d[side], *all = activations.all[side];
#pragma GCC unroll 16
            for (int c = 0; c < n; ++c) {
                for (int half = 0; half < units; ++half) {
                    const int unit = side * units + half;
                    const int32_t* at = halved ? products + unit / 2 * product_floats + (unit % 2 * half_tile + c) * 16
                                               : products + unit * product_floats + c * 16;
                    const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(at));
                    acc[c] = _mm512_fmadd_ps(dot, _mm512_mul_ps(half ? s.d2 : s.d, _mm512_set1_ps(d[c])), acc[c]);
                }
                if constexpr (has_min(scales)) {
                    acc[c] = _mm512_fmadd_ps(s.m, _mm512_set1_ps(all[c]), acc[c]);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        if (c < tile.n) _mm512_storeu_ps(tile.result + c * tile.result_stride, acc[c]);
    }
}

template <Codes codes, Scales scales, bool has_table>
void run(const Job& job) {
    // The sums of half cells, by which mins are multiplied, are not among what is arranged.
    if constexpr (scales == Scales::super_half_min) {
        return avx512vnni.multiply(job);
    }
    static constexpr void (*functions[most_columns / 2])(const Tile&) = {
        multiply_tile<codes, scales, has_table, 2>,  multiply_tile<codes, scales, has_table, 4>,
        multiply_tile<codes, scales, has_table, 6>,  multiply_tile<codes, scales, has_table, 8>,
        multiply_tile<codes, scales, has_table, 10>, multiply_tile<codes, scales, has_table, 12>,
        multiply_tile<codes, scales, has_table, 14>, multiply_tile<codes, scales, has_table, 16>};
    // Columns are divided evenly among the tiles; each tile has an even number.
    const int tiles = (job.n + most_columns - 1) / most_columns;
    const int n = (job.n + 2 * tiles - 1) / (2 * tiles) * 2;
    const bool halved = n <= half_tile;
    const int64_t cells = job.columns / cell_columns, block = tiles > 1 ? std::min<int64_t>(cells, block_cells) : cells;
    const int64_t pairs = (block + 1) / 2, kept = tiles > 1 ? pairs : 4;

    Scratch& scratch = scratch_of_thread();
    scratch.activations.resize(static_cast<size_t>(pairs * tiles));
    scratch.codes.resize(static_cast<size_t>(kept) * code_pair_bytes / sizeof(Line));
    scratch.products.resize(2 * products_per_pair * product_floats * sizeof(int32_t) / sizeof(Line));
    Tile tile{};
    tile.last = job.last_line();
    tile.far = tiles > 1 ? job.format.group_bytes(job.columns) : far_ahead;  // after a block, the next group's
    tile.codes = scratch.codes.data()->bytes;
    tile.code_mask = tiles > 1 ? ~int64_t{0} : kept - 1;
    tile.products = reinterpret_cast<int32_t*>(scratch.products.data()->bytes);
    tile.zero = _mm512_set1_epi8(static_cast<char>(job.format.zero));
    if constexpr (has_table) {
        tile.table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(job.format.table)));
    }
    tile.result_stride = job.result_stride;
    configure_tiles(halved ? half_tile + n : n, cell_columns / units_per_cell<scales> * (halved ? 2 : 1));
    for (int64_t begin = 0; begin < cells; begin += block) {
        tile.cells = std::min(block, cells - begin);
        tile.resume = begin > 0;
        for (int t = 0; t < tiles; ++t) {
            arrange<scales>(job, t * n, std::min(n, job.n - t * n), begin, tile.cells, halved,
                            &scratch.activations[static_cast<size_t>(t * pairs)]);
        }
        for (int64_t group = job.begin; group < job.end; ++group) {
            const uint8_t* codes_of_group = job.group(group);
            tile.code = codes_of_group + static_cast<size_t>(begin) * job.format.code_bytes();
            tile.scale =
                codes_of_group + static_cast<size_t>(cells) * job.format.code_bytes() + job.format.scale_bytes(begin);
            for (int t = 0; t < tiles; ++t) {
                tile.unpack = t == 0;
                tile.activations = &scratch.activations[static_cast<size_t>(t * pairs)];
                tile.n = std::min(n, job.n - t * n);
                tile.result = job.result + static_cast<size_t>(t * n) * job.result_stride + group * group_rows;
                functions[n / 2 - 1](tile);
            }
        }
    }
    _tile_release();
}

void multiply_few(const Job& job) {
    job.n < fewest_columns(job.format) ? avx512vnni.multiply(job) : multiply(job);
}

}  // namespace

const Kernels amx_int8 = {"amx-int8",    quantize_avx512, multiply_few, multiply_floats_avx512,
                          attend_avx512, delta_net_avx512};

}  // namespace medusa::kernels
