// 16 rows in the lanes of a zmm register, up to 16 activation columns at a time: their sums and a cell's weights fill
// 24 registers. See scalar.cpp for what is computed. Compiled with AVX512 F, BW, DQ, VL and VNNI; nothing here may run
// before select_kernels() has seen them.
#include "kernels/avx512.inl"

namespace medusa::kernels {
namespace {

constexpr int tile_columns = 16;

// One group of rows times `n` columns.
template <Codes codes, Scales scales, bool has_table, int n>
void multiply_tile(const uint8_t* code, const uint8_t* scale, int64_t cells, __m512i table, const Column* column,
                   const uint8_t* last, size_t far, float* result, size_t result_stride) {
    constexpr Format sizes{GGML_TYPE_F32, codes, scales, 0, nullptr};
    __m512 acc[n];
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
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) {
            const CellSums& sums = column[c].sums[cell];
            const int8_t* q = column[c].q + cell * cell_columns;
            const auto word = [q](int j) {
                int32_t four;
                std::memcpy(&four, q + 4 * j, 4);
                return _mm512_set1_epi32(four);
            };
            const __m512 d = _mm512_set1_ps(sums.d);
            constexpr bool mins_of_halves = scales == Scales::super_half_min;
            const auto start = [&](int half) { return _mm512_set1_epi32(mins_of_halves ? 0 : sums.start[half]); };
            __m512i dot = start(0);
            for (int j = 0; j < 4; ++j) dot = _mm512_dpbusd_epi32(dot, w[j], word(j));
            if constexpr (has_halves(scales)) {
                acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s.d, d), acc[c]);
                dot = start(1);
                for (int j = 4; j < words; ++j) dot = _mm512_dpbusd_epi32(dot, w[j], word(j));
                acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s.d2, d), acc[c]);
            } else {
                for (int j = 4; j < words; ++j) dot = _mm512_dpbusd_epi32(dot, w[j], word(j));
                acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s.d, d), acc[c]);
            }
            if constexpr (mins_of_halves) {
                acc[c] = _mm512_fmadd_ps(s.m, _mm512_set1_ps(sums.d * static_cast<float>(sums.start[0])), acc[c]);
                acc[c] = _mm512_fmadd_ps(s.m2, _mm512_set1_ps(sums.d * static_cast<float>(sums.start[1])), acc[c]);
            } else if constexpr (has_min(scales)) {
                acc[c] = _mm512_fmadd_ps(s.m, _mm512_set1_ps(sums.all), acc[c]);
            }
        }
        const size_t one = pace.one();
        code += one * sizes.code_bytes();
        scale += one * own_bytes(scales);
    }
    for (int c = 0; c < n; ++c) _mm512_storeu_ps(result + c * result_stride, acc[c]);
}

using TileFunction = void (*)(const uint8_t*, const uint8_t*, int64_t, __m512i, const Column*, const uint8_t*, size_t,
                              float*, size_t);

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
            Column column[tile_columns];
            for (int c = 0; c < n; ++c) column[c] = column_at(job, first + c);
            float* result = job.result + first * job.result_stride + group * group_rows;
            functions.of[n - 1](code, scale, cells, table, column, last, far, result, job.result_stride);
        }
    }
}

}  // namespace

const Kernels avx512vnni = {"avx512vnni",           quantize_avx512, multiply,
                            multiply_floats_avx512, attend_avx512,   delta_net_avx512};

}  // namespace medusa::kernels
