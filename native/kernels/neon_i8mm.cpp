// Products of 2 rows by 2 columns at a time (smmla); a single column goes by dot products.
// Compiled for ARMv8.2 with dot products and 8-bit matrix products; nothing here may run before select_kernels() has
// seen them.
#include <arm_neon.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/format.h"

namespace medusa::kernels {
namespace {

#include "kernels/dispatch.inl"
#include "kernels/neon.inl"

// Sums of two columns for one cell, in the lanes of a product: first row with both columns, then second row.
struct PairSums {
    float d[4], all[4];
};

// Two activation columns side by side: 8 values of the first, 8 of the second, and so on.
struct Pair {
    const int8_t* q;
    const PairSums* sums;
};

size_t pair_bytes(int64_t columns) {
    return static_cast<size_t>(columns) * 2 + static_cast<size_t>(columns / cell_columns) * sizeof(PairSums);
}

Pair pair_at(const char* pairs, int64_t columns, int index) {
    const char* base = pairs + static_cast<size_t>(index) * pair_bytes(columns);
    return {reinterpret_cast<const int8_t*>(base), reinterpret_cast<const PairSums*>(base + columns * 2)};
}

void interleave(const Column& a, const Column& b, int64_t columns, char* target) {
    auto* q = reinterpret_cast<int8_t*>(target);
    auto* sums = reinterpret_cast<PairSums*>(target + columns * 2);
    for (int64_t i = 0; i < columns; i += 8) {
        vst1q_s8(q + 2 * i, vcombine_s8(vld1_s8(a.q + i), vld1_s8(b.q + i)));
    }
    for (int64_t cell = 0; cell < columns / cell_columns; ++cell) {
        const CellSums &x = a.sums[cell], &y = b.sums[cell];
        sums[cell] = {{x.d, y.d, x.d, y.d}, {x.all, y.all, x.all, y.all}};
    }
}

// All columns of the job in pairs; the last one twice where their number is odd. Valid until the thread's next call.
const char* interleave_all(const Job& job) {
    thread_local std::vector<char> pairs;
    const size_t bytes = pair_bytes(job.columns);
    const int count = (job.n + 1) / 2;
    if (pairs.size() < bytes * static_cast<size_t>(count)) pairs.resize(bytes * static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
        interleave(column_at(job, 2 * i), column_at(job, std::min(2 * i + 1, job.n - 1)), job.columns,
                   pairs.data() + static_cast<size_t>(i) * bytes);
    }
    return pairs.data();
}

// The sums of 4 rows by two columns: rows 0, 1 in `top`, rows 2, 3 in `bottom`.
struct Block {
    float32x4_t top, bottom;
};

// acc + the products of eights begin..end-1 of a cell, times d and the columns' own.
template <int begin, int end>
MEDUSA_INLINE void add_block(Block& acc, const int8x16_t* top, const int8x16_t* bottom, const int8_t* q, float32x4_t d,
                             float32x4_t column_d) {
    int32x4_t dot_top = vdupq_n_s32(0), dot_bottom = dot_top;
    for (int k = begin; k < end; ++k) {
        const int8x16_t x = vld1q_s8(q + 16 * k);
        dot_top = vmmlaq_s32(dot_top, top[k], x);
        dot_bottom = vmmlaq_s32(dot_bottom, bottom[k], x);
    }
    acc.top = vfmaq_f32(acc.top, vcvtq_f32_s32(dot_top), vmulq_f32(vzip1q_f32(d, d), column_d));
    acc.bottom = vfmaq_f32(acc.bottom, vcvtq_f32_s32(dot_bottom), vmulq_f32(vzip2q_f32(d, d), column_d));
}

// Sums of 4 rows by 2 * pairs columns.
template <int pairs>
struct Blocks {
    Block of[pairs];
};

// acc + one cell's products of the 4 rows from `row` on.
template <Codes codes, Scales scales, bool has_table, int pairs>
MEDUSA_INLINE void add_cell_of_pairs(Blocks<pairs>& acc, const uint8_t* code, const uint8_t* head, const uint8_t* scale,
                                     int row, const Constants& constants, const Pair* pair, int64_t cell) {
    constexpr int eights = cell_columns / 8;
    int8x16_t w[words], top[eights], bottom[eights];  // 2 rows x 8 columns
    load_codes<codes, scales, has_table>(code + 4 * row, constants, w);
    for (int k = 0; k < eights; ++k) {
        const int32x4_t left = vreinterpretq_s32_s8(w[2 * k]), right = vreinterpretq_s32_s8(w[2 * k + 1]);
        top[k] = vreinterpretq_s8_s32(vzip1q_s32(left, right));
        bottom[k] = vreinterpretq_s8_s32(vzip2q_s32(left, right));
    }
    const Scale s = load_scale<scales>(head, scale, row);
#pragma GCC unroll 4
    for (int p = 0; p < pairs; ++p) {
        Block& block = acc.of[p];
        const int8_t* q = pair[p].q + cell * cell_columns * 2;
        const PairSums& sums = pair[p].sums[cell];
        const float32x4_t d = vld1q_f32(sums.d);
        if constexpr (scales == Scales::super_half) {
            add_block<0, 2>(block, top, bottom, q, s.d, d);
            add_block<2, 4>(block, top, bottom, q, s.d2, d);
        } else {
            add_block<0, 4>(block, top, bottom, q, s.d, d);
        }
        if constexpr (has_min<scales>) {
            const float32x4_t all = vld1q_f32(sums.all);
            block.top = vfmaq_f32(block.top, vzip1q_f32(s.m, s.m), all);
            block.bottom = vfmaq_f32(block.bottom, vzip2q_f32(s.m, s.m), all);
        }
    }
}

// The first n columns.
template <int pairs>
MEDUSA_INLINE void store_pairs(const Blocks<pairs>& acc, int n, float* result, size_t result_stride) {
    for (int p = 0; p < pairs; ++p, result += 2 * result_stride) {
        const Block& block = acc.of[p];
        vst1q_f32(result, vuzp1q_f32(block.top, block.bottom));
        if (2 * p + 1 < n) vst1q_f32(result + result_stride, vuzp2q_f32(block.top, block.bottom));
    }
}

// Rows first..first+rows_at_once(2 * pairs)-1 of a group times 2 * pairs columns, the last of which may be left out.
template <Codes codes, Scales scales, bool has_table, int pairs>
void multiply_pairs(const uint8_t* code, const uint8_t* scale, int64_t cells, int first, const Constants& constants,
                    const Pair* pair, int n, float* result, size_t result_stride) {
    constexpr int quads = rows_at_once(2 * pairs) / quad;
    Blocks<pairs> acc[quads] = {};
    const auto step = [&](int64_t cell, const uint8_t* at, const uint8_t* head, const uint8_t* own) {
        constexpr auto add = add_cell_of_pairs<codes, scales, has_table, pairs>;
        add(acc[0], at, head, own, first, constants, pair, cell);
        if constexpr (quads > 1) add(acc[1], at, head, own, first + quad, constants, pair, cell);
        if constexpr (quads > 2) {
            add(acc[2], at, head, own, first + 2 * quad, constants, pair, cell);
            add(acc[3], at, head, own, first + 3 * quad, constants, pair, cell);
        }
    };
    for_each_cell<codes, scales>(code, scale, cells, constants.last, step);
    store_pairs(acc[0], n, result, result_stride);
    if constexpr (quads > 1) store_pairs(acc[1], n, result + quad, result_stride);
    if constexpr (quads > 2) {
        store_pairs(acc[2], n, result + 2 * quad, result_stride);
        store_pairs(acc[3], n, result + 3 * quad, result_stride);
    }
}

using PairsFunction = void (*)(const uint8_t*, const uint8_t*, int64_t, int, const Constants&, const Pair*, int, float*,
                               size_t);

template <Codes codes, Scales scales, bool has_table>
void run(const Job& job) {
    if (job.n == 1) return run_by_dots<codes, scales, has_table>(job, std::make_integer_sequence<int, 1>{});
    static constexpr PairsFunction tiles[tile_columns / 2] = {
        multiply_pairs<codes, scales, has_table, 1>, multiply_pairs<codes, scales, has_table, 2>,
        multiply_pairs<codes, scales, has_table, 3>, multiply_pairs<codes, scales, has_table, 4>};
    const Constants constants = constants_of(job);
    const int64_t cells = job.columns / cell_columns;
    const char* pairs = interleave_all(job);
    for (int64_t index = job.begin; index < job.end; ++index) {
        const Group group = group_at(job, index);
        for (int begin = 0; begin < job.n; begin += tile_columns) {
            const int n = std::min(tile_columns, job.n - begin), used = (n + 1) / 2;
            Pair pair[tile_columns / 2];
            for (int p = 0; p < used; ++p) pair[p] = pair_at(pairs, job.columns, begin / 2 + p);
            for (int first = 0; first < group_rows; first += rows_at_once(2 * used)) {
                tiles[used - 1](group.code, group.scale, cells, first, constants, pair, n,
                                group.result + begin * job.result_stride + first, job.result_stride);
            }
        }
    }
}

}  // namespace

const Kernels neon_i8mm = {"neon-i8mm", quantize, multiply, attend_neon, delta_net_neon};

}  // namespace medusa::kernels
