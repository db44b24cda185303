// Products of 2 rows by 2 columns at a time (smmla); a single column uses dot products.
// Compiled for ARMv8.2 with dot products and 8-bit matrix products; nothing here may run before select_kernels() has
// seen them.
#include "kernels/neon.inl"

namespace medusa::kernels {
namespace {

// Two activation columns as a tile reads them: cell by cell 8 values of the first, 8 of the second, and so on, `starts`
// times both columns' integer twice over, both columns' d twice over, and the same for the factor of the mins.
template <Codes codes, Scales scales, bool has_table>
constexpr size_t pair_step = 2 * cell_columns + 16 * starts<codes, scales, has_table> + (has_min(scales) ? 32 : 16);

// One pair, `step` bytes from one cell to the next.
template <Codes codes, Scales scales, bool has_table>
void lay_out(const Column& a, const Column& b, int64_t cells, char* to, size_t step) {
    for (int64_t cell = 0; cell < cells; ++cell, to += step) {
        auto* values = reinterpret_cast<int8_t*>(to);
        for (int64_t i = 0; i < cell_columns; i += 8) {
            const int64_t at = cell * cell_columns + i;
            vst1q_s8(values + 2 * i, vcombine_s8(vld1_s8(a.q + at), vld1_s8(b.q + at)));
        }
        const CellSums &x = a.sums[cell], &y = b.sums[cell];
        const float32x4_t first = vld1q_f32(&x.d), second = vld1q_f32(&y.d);
        const int32x4_t both = vreinterpretq_s32_f32(vzip2q_f32(first, second));
        auto* start = reinterpret_cast<int32_t*>(values + 2 * cell_columns);
        constexpr int begins = starts<codes, scales, has_table>;
        if constexpr (begins > 0) vst1q_s32(start, vcombine_s32(vget_low_s32(both), vget_low_s32(both)));
        if constexpr (begins > 1) vst1q_s32(start + 4, vcombine_s32(vget_high_s32(both), vget_high_s32(both)));
        auto* floats = reinterpret_cast<float*>(start + 4 * begins);
        const float32x4_t sums = vzip1q_f32(first, second);
        vst1q_f32(floats, vcombine_f32(vget_low_f32(sums), vget_low_f32(sums)));
        if constexpr (has_min(scales)) {
            vst1q_f32(floats + 4, vcombine_f32(vget_high_f32(sums), vget_high_f32(sums)));
        }
    }
}

// The sums of 4 rows by two columns: rows 0, 1 in `top`, rows 2, 3 in `bottom`.
struct Block {
    float32x4_t top, bottom;
};

// The scales of 4 rows, one for each of two columns.
struct PairScale {
    float32x4_t top, bottom;
};

MEDUSA_INLINE PairScale twice(float32x4_t of_rows) {
    return {vzip1q_f32(of_rows, of_rows), vzip2q_f32(of_rows, of_rows)};
}

// acc + start and the products of eights begin..end-1 of a cell, times d and the columns' own.
template <int begin, int end>
MEDUSA_INLINE void add_block(Block& acc, const int8x16_t* top, const int8x16_t* bottom, const int8_t* q,
                             int32x4_t start, const PairScale& d, float32x4_t column_d) {
    int32x4_t dot_top = start, dot_bottom = start;
    for (int k = begin; k < end; ++k) {
        const int8x16_t x = vld1q_s8(q + 16 * k);
        dot_top = vmmlaq_s32(dot_top, top[k], x);
        dot_bottom = vmmlaq_s32(dot_bottom, bottom[k], x);
    }
    acc.top = vfmaq_f32(acc.top, vcvtq_f32_s32(dot_top), vmulq_f32(d.top, column_d));
    acc.bottom = vfmaq_f32(acc.bottom, vcvtq_f32_s32(dot_bottom), vmulq_f32(d.bottom, column_d));
}

// Sums of 4 rows by 2 * pairs columns.
template <int pairs>
struct Blocks {
    Block of[pairs];
};

// acc + one cell's products of 4 rows; `pair`: the first pair's cell.
template <Codes codes, Scales scales, bool has_table, int pairs>
MEDUSA_INLINE void add_cell_of_pairs(Blocks<pairs>& acc, const Place<codes, scales>& at, const Rows<scales>& rows,
                                     const Constants& constants, const char* pair) {
    constexpr int eights = cell_columns / 8, begins = starts<codes, scales, has_table>;
    int8x16_t w[words], top[eights], bottom[eights];  // 2 rows x 8 columns
    load_codes<codes, has_table>(at.code + 4 * rows.first, constants, w);
    for (int k = 0; k < eights; ++k) {
        const int32x4_t left = vreinterpretq_s32_s8(w[2 * k]), right = vreinterpretq_s32_s8(w[2 * k + 1]);
        top[k] = vreinterpretq_s8_s32(vzip1q_s32(left, right));
        bottom[k] = vreinterpretq_s8_s32(vzip2q_s32(left, right));
    }
    const Scale s = load_scale<scales>(rows.head, at.scale, rows.first, rows.spread);
    const PairScale d = twice(s.d), d2 = twice(s.d2), m = twice(s.m);
    pair = again<2 * pairs>(pair);
#pragma GCC unroll 8
    for (int p = 0; p < pairs; ++p, pair += pair_step<codes, scales, has_table>) {
        Block& block = acc.of[p];
        const auto* q = reinterpret_cast<const int8_t*>(pair);
        const auto* start = reinterpret_cast<const int32_t*>(q + 2 * cell_columns);
        const auto* floats = reinterpret_cast<const float*>(start + 4 * begins);
        const int32x4_t none = vdupq_n_s32(0), from = begins > 0 ? vld1q_s32(start) : none;
        const float32x4_t column_d = vld1q_f32(floats);
        if constexpr (scales == Scales::super_half) {
            add_block<0, 2>(block, top, bottom, q, from, d, column_d);
            add_block<2, 4>(block, top, bottom, q, begins > 1 ? vld1q_s32(start + 4) : none, d2, column_d);
        } else {
            add_block<0, 4>(block, top, bottom, q, from, d, column_d);
        }
        if constexpr (has_min(scales)) {
            const float32x4_t all = vld1q_f32(floats + 4);
            block.top = vfmaq_f32(block.top, m.top, all);
            block.bottom = vfmaq_f32(block.bottom, m.bottom, all);
        }
    }
}

// The first n columns.
template <int pairs>
MEDUSA_INLINE void store_pairs(const Blocks<pairs>& acc, int n, float* result, size_t result_stride) {
#pragma GCC unroll 8
    for (int p = 0; p < pairs; ++p, result += 2 * result_stride) {
        const Block& block = acc.of[p];
        vst1q_f32(result, vuzp1q_f32(block.top, block.bottom));
        if (2 * p + 1 < n) vst1q_f32(result + result_stride, vuzp2q_f32(block.top, block.bottom));
    }
}

// Rows first..first+rows_at_once(2 * pairs)-1 of a group times 2 * pairs columns; the last column may be left out.
template <Codes codes, Scales scales, bool has_table, int pairs>
void multiply_pairs(const uint8_t* code, const uint8_t* scale, int64_t cells, int first, const Constants& constants,
                    const char* pair, int n, float* result, size_t result_stride) {
    constexpr int at_once = rows_at_once(2 * pairs), quads = at_once / quad;
    const Constants own = constants;
    Blocks<pairs> acc[quads] = {};
    Rows<scales> rows[4] = {rows_from<scales>(first), rows_from<scales>(first + quad),
                            rows_from<scales>(first + 2 * quad), rows_from<scales>(first + 3 * quad)};
    Place<codes, scales> at{code, scale};
    for (int64_t cell = 0; cell < cells;) {
        for (int i = 0; i < quads; ++i) rows[i].read(at.scale);
        at.scale += head_bytes(scales);
        for (const int64_t end = cell + cells_together<scales>(cells); cell < end; ++cell) {
            at.template prefetch_ahead<group_rows / at_once>(first / at_once, own.last);
            constexpr auto add = add_cell_of_pairs<codes, scales, has_table, pairs>;
            add(acc[0], at, rows[0], own, pair);
            if constexpr (quads > 1) add(acc[1], at, rows[1], own, pair);
            if constexpr (quads > 2) {
                add(acc[2], at, rows[2], own, pair);
                add(acc[3], at, rows[3], own, pair);
            }
            at.next();
            pair += pairs * pair_step<codes, scales, has_table>;
        }
    }
    store_pairs(acc[0], n, result, result_stride);
    if constexpr (quads > 1) store_pairs(acc[1], n, result + quad, result_stride);
    if constexpr (quads > 2) {
        store_pairs(acc[2], n, result + 2 * quad, result_stride);
        store_pairs(acc[3], n, result + 3 * quad, result_stride);
    }
}

using PairsFunction = void (*)(const uint8_t*, const uint8_t*, int64_t, int, const Constants&, const char*, int, float*,
                               size_t);

// The whole job with multiply_pairs(), in tiles of 1..widest pairs, all nearly equal in width.
template <Codes codes, Scales scales, bool has_table, int... before>
void run_by_pairs(const Job& job, std::integer_sequence<int, before...>) {
    constexpr int widest = sizeof...(before);
    static constexpr PairsFunction functions[] = {multiply_pairs<codes, scales, has_table, before + 1>...};
    const Constants constants = constants_of(job);
    const int64_t cells = job.columns / cell_columns;
    const int count = (job.n + 1) / 2, tiles = (count + widest - 1) / widest;
    constexpr size_t step = pair_step<codes, scales, has_table>;
    const size_t pair_size = static_cast<size_t>(cells) * step;
    char* pairs = scratch(static_cast<size_t>(count) * pair_size);
    for (int tile = 0; tile < tiles; ++tile) {
        const int first = count * tile / tiles, used = count * (tile + 1) / tiles - first;
        for (int p = 0; p < used; ++p) {
            // If their number is odd, the last column appears twice.
            const int left = 2 * (first + p), right = std::min(left + 1, job.n - 1);
            lay_out<codes, scales, has_table>(column_at(job, left), column_at(job, right), cells,
                                              pairs + first * pair_size + p * step, used * step);
        }
    }
    for (int64_t index = job.begin; index < job.end; ++index) {
        const Group group = group_at(job, index);
        for (int tile = 0; tile < tiles; ++tile) {
            const int first = count * tile / tiles, used = count * (tile + 1) / tiles - first;
            for (int row = 0; row < group_rows; row += rows_at_once(2 * used)) {
                functions[used - 1](group.code, group.scale, cells, row, constants, pairs + first * pair_size,
                                    job.n - 2 * first, group.result + 2 * first * job.result_stride + row,
                                    job.result_stride);
            }
        }
    }
}

// This many columns take fewer instructions one by one.
constexpr int most_by_dots = 3;

template <Codes codes, Scales scales, bool has_table>
void run_strip(const Job& job) {
    if (job.n <= most_by_dots) {
        return run_by_dots<codes, scales, has_table>(job, std::make_integer_sequence<int, most_by_dots>{});
    }
    if constexpr (scales == Scales::super_half_min) {
        // The sums of half cells, by which mins are multiplied, are not among those of a pair.
        run_by_dots<codes, scales, has_table>(job, std::make_integer_sequence<int, tile_columns>{});
    } else {
        run_by_pairs<codes, scales, has_table>(job, std::make_integer_sequence<int, tile_columns / 2>{});
    }
}

template <Codes codes, Scales scales, bool has_table>
void run(const Job& job) {
    in_strips(job, run_strip<codes, scales, has_table>);
}

}  // namespace

const Kernels neon_i8mm = {"neon-i8mm", quantize, multiply, multiply_floats_neon, attend_neon, delta_net_neon};

}  // namespace medusa::kernels
