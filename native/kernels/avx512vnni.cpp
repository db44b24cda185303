// 16 rows in the lanes of a zmm register, up to 16 activation columns at a time: their sums and a cell's weights fill
// 24 registers. See scalar.cpp for what is computed. Compiled with AVX512 F, BW, DQ, VL and VNNI; nothing here may run
// before select_kernels() has seen them.
#include "kernels/avx512.inl"

namespace medusa::kernels {
namespace {

constexpr int tile_columns = 16;

// How many columns' products take turns: as many as there are registers left for, which are few with scales for halves.
constexpr int most_in_turn(Scales scales, int n) {
    return has_halves(scales) && n > 8 ? 1 : std::min(8, 20 - n);
}
// Of `left` columns of n, evenly.
constexpr int in_turn(Scales scales, int n, int left) {
    const int most = most_in_turn(scales, n), groups = (left + most - 1) / most;
    return (left + groups - 1) / groups;
}

// Adds the products of a cell with `count` columns from column `first` on, whose activations and their sums begin at
// `at` and `at_sums`. They take turns: a product waits for the one before it of the same column, and the processor's
// queues are short. Columns are found by their stride: a pointer to each would not fit in registers.
template <Scales scales, int n, int first, int count>
MEDUSA_INLINE void add_cell(const __m512i (&w)[words], const Scale& s, const char* at, const char* at_sums,
                            size_t stride, __m512 (&acc)[n]) {
    constexpr bool mins_of_halves = scales == Scales::super_half_min;
    constexpr int parts = has_halves(scales) ? 2 : 1, part_words = words / parts;
    const auto sums = [=](int c) { return reinterpret_cast<const CellSums*>(at_sums + c * stride); };
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part) {
        __m512i dot[count];
#pragma GCC unroll 16
        for (int c = 0; c < count; ++c) dot[c] = _mm512_set1_epi32(mins_of_halves ? 0 : sums(c)->start[part]);
#pragma GCC unroll 8
        for (int j = part * part_words; j < (part + 1) * part_words; ++j) {
#pragma GCC unroll 16
            for (int c = 0; c < count; ++c) {
                int32_t four;
                std::memcpy(&four, at + c * stride + 4 * j, 4);
                dot[c] = _mm512_dpbusd_epi32(dot[c], w[j], _mm512_set1_epi32(four));
            }
        }
#pragma GCC unroll 16
        for (int c = 0; c < count; ++c) {
            const __m512 scale = _mm512_mul_ps(part == 0 ? s.d : s.d2, _mm512_set1_ps(sums(c)->d));
            acc[first + c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[c]), scale, acc[first + c]);
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < count; ++c) {
        __m512& sum = acc[first + c];
        if constexpr (mins_of_halves) {
            sum = _mm512_fmadd_ps(s.m, _mm512_set1_ps(sums(c)->d * static_cast<float>(sums(c)->start[0])), sum);
            sum = _mm512_fmadd_ps(s.m2, _mm512_set1_ps(sums(c)->d * static_cast<float>(sums(c)->start[1])), sum);
        } else if constexpr (has_min(scales)) {
            sum = _mm512_fmadd_ps(s.m, _mm512_set1_ps(sums(c)->all), sum);
        }
    }
}

template <Scales scales, int n, int first = 0>
MEDUSA_INLINE void add_cells(const __m512i (&w)[words], const Scale& s, const char* at, const char* at_sums,
                             size_t stride, __m512 (&acc)[n]) {
    if constexpr (first < n) {
        constexpr int count = in_turn(scales, n, n - first);
        add_cell<scales, n, first, count>(w, s, at, at_sums, stride, acc);
        add_cells<scales, n, first + count>(w, s, at + count * stride, at_sums + count * stride, stride, acc);
    }
}

// One group of rows times `n` columns.
template <Codes codes, Scales scales, bool has_table, int n>
void multiply_tile(const uint8_t* code, const uint8_t* scale, int64_t cells, __m512i table, const char* column,
                   const char* column_sums, size_t stride, const uint8_t* last, size_t far, float* result,
                   size_t result_stride) {
    constexpr Format sizes{GGML_TYPE_F32, codes, scales, 0, nullptr};
    __m512 acc[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) acc[c] = _mm512_setzero_ps();
    Scale head{};
    Pace<sizes.code_bytes() + own_bytes(scales), words * n> pace;  // one product per cycle
    for (int64_t cell = 0; cell < cells; ++cell) {
        if constexpr (head_bytes(scales) != 0) {
            if (cell % cells_per_super == 0) {
                head = load_head<scales>(scale);
                scale += head_bytes(scales);
            }
        }
        __m512i w[words];
        load_codes<codes, has_table>(code, table, w);
        const Scale s = load_scale<scales>(head, scale);
        for (size_t line = 0; line < sizes.code_bytes(); line += 64) prefetch(code + line, last, far);
        prefetch(scale, last, far);
        add_cells<scales>(w, s, column, column_sums, stride, acc);
        column += cell_columns;
        column_sums += sizeof(CellSums);
        const size_t one = pace.one();
        code += one * sizes.code_bytes();
        scale += one * own_bytes(scales);
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) _mm512_storeu_ps(result + c * result_stride, acc[c]);
}

using TileFunction = void (*)(const uint8_t*, const uint8_t*, int64_t, __m512i, const char*, const char*, size_t,
                              const uint8_t*, size_t, float*, size_t);

struct Functions {
    TileFunction of[tile_columns];  // by columns - 1
};

template <Codes codes, Scales scales, bool has_table, int... n>
constexpr Functions functions_of(std::integer_sequence<int, n...>) {
    return {{multiply_tile<codes, scales, has_table, n + 1>...}};
}

template <Codes codes, Scales scales, bool has_table>
void run(const Job& job) {
    static constexpr Functions functions =
        functions_of<codes, scales, has_table>(std::make_integer_sequence<int, tile_columns>());
    __m512i table = _mm512_setzero_si512();
    if constexpr (has_table) {
        const __m128i signed_values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(job.format.table));
        table = _mm512_broadcast_i32x4(_mm_xor_si128(signed_values, _mm_set1_epi8(static_cast<char>(0x80))));
    }
    const int64_t cells = job.columns / cell_columns;
    const uint8_t* last = job.last_line();
    const size_t far = far_ahead_in(job.format.group_bytes(job.columns));
    const int tiles = (job.n + tile_columns - 1) / tile_columns;
    // A group of rows stays in the first-level cache for all tiles of columns.
    for (int64_t group = job.begin; group < job.end; ++group) {
        const uint8_t* code = job.group(group);
        const uint8_t* scale = code + static_cast<size_t>(cells) * job.format.code_bytes();
        for (int tile = 0; tile < tiles; ++tile) {
            const int first = job.n * tile / tiles, n = job.n * (tile + 1) / tiles - first;
            const char* column = job.column(first);
            const auto* sums = reinterpret_cast<const char*>(column_sums(column, job.columns));
            float* result = job.result + first * job.result_stride + group * group_rows;
            functions.of[n - 1](code, scale, cells, table, column, sums, job.stride, last, far, result,
                                job.result_stride);
        }
    }
}

}  // namespace

const Kernels avx512vnni = {"avx512vnni",           quantize_avx512, multiply,
                            multiply_floats_avx512, attend_avx512,   delta_net_avx512};

}  // namespace medusa::kernels
