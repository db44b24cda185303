// 4 rows in the lanes of a register, up to 16 activation columns at a time. See scalar.cpp for what is computed.
// Sums stay in registers only if what adds to them is inlined.
#pragma once

#include "kernels/dispatch.inl"

namespace medusa::kernels {
namespace {

constexpr int tile_columns = 16;
constexpr int words = 8;  // a cell is 8 registers of 4 rows x 4 columns
constexpr int quad = 4;   // rows in a register
// Rows of a group that pass over n columns together: their sums and the weights of 4 rows fill 24 of 32 registers.
constexpr int rows_at_once(int n) {
    return n <= 4 ? group_rows : n <= 8 ? group_rows / 2 : quad;
}

// Where the dot products of a cell, or of its halves, start: at zero, at CellSums::start[0], or at both. sdot and smmla
// take signed weights: values of tables are signed, and codes of 8 bits lose their zero point when unpacked.
template <Codes codes, Scales scales, bool has_table>
constexpr int starts = has_table || codes == Codes::u8 || has_min(scales) ? 0
                       : has_halves(scales)                               ? 2
                                                                          : 1;

struct Constants {
    int8x16_t table;
    const uint8_t* last;  // see prefetch()
};

// Codes of 5 and 6 bits: the nibbles' upper bits are inserted above them. Bits 0 to 3 of `low` go above the low
// nibbles, bits 4 to 7 of `high` above the high ones; where they are not used they are zero.
MEDUSA_INLINE uint8x16_t above_low(uint8x16_t packed, uint8x16_t low) {
    return vsliq_n_u8(packed, low, 4);
}
MEDUSA_INLINE uint8x16_t above_high(uint8x16_t packed, uint8x16_t high) {
    return vsriq_n_u8(high, packed, 4);
}

MEDUSA_INLINE void load_u5(const uint8_t* cell, uint8x16_t (&u)[words]) {
    const uint8x16_t high = vld1q_u8(cell + 256), mask = vdupq_n_u8(0x11);
    const uint8x16_t shifted[4] = {high, vshrq_n_u8(high, 1), vshrq_n_u8(high, 2), vshrq_n_u8(high, 3)};
    for (int j = 0; j < 4; ++j) {
        const uint8x16_t packed = vld1q_u8(cell + 64 * j), bits = vandq_u8(shifted[j], mask);
        u[j] = above_low(packed, bits);
        u[j + 4] = above_high(packed, bits);
    }
}

MEDUSA_INLINE void load_u6(const uint8_t* cell, uint8x16_t (&u)[words]) {
    const uint8x16_t mask = vdupq_n_u8(0x33), low_nibble = vdupq_n_u8(15);
    const uint8x16_t low = vld1q_u8(cell + 256), high = vld1q_u8(cell + 320);
    const uint8x16_t of_low[2] = {vandq_u8(low, mask), vandq_u8(vshrq_n_u8(low, 2), mask)};
    const uint8x16_t of_high[2] = {vandq_u8(high, mask), vandq_u8(vshrq_n_u8(high, 2), mask)};
    for (int j = 0; j < 2; ++j) {
        const uint8x16_t packed = vld1q_u8(cell + 64 * j), later = vld1q_u8(cell + 64 * (j + 2));
        u[j] = above_low(packed, of_low[j]);
        u[j + 2] = vbslq_u8(low_nibble, later, of_low[j]);
        u[j + 4] = above_high(packed, vshlq_n_u8(of_high[j], 4));
        u[j + 6] = above_high(later, of_high[j]);
    }
}

// `cell` points at the first byte of these 4 rows.
template <Codes codes, bool has_table>
MEDUSA_INLINE void load_codes(const uint8_t* cell, const Constants& constants, int8x16_t (&w)[words]) {
    uint8x16_t u[words];
    if constexpr (codes == Codes::u8) {
        for (int j = 0; j < words; ++j) u[j] = vld1q_u8(cell + 64 * j);
    } else if constexpr (codes == Codes::u5) {
        load_u5(cell, u);
    } else if constexpr (codes == Codes::u6) {
        load_u6(cell, u);
    } else if constexpr (codes == Codes::u2 || codes == Codes::u3) {
        for (int half = 0; half < 2; ++half) {
            const uint8x16_t packed = vld1q_u8(cell + 64 * half);
            const uint8x16_t shifted[4] = {packed, vshrq_n_u8(packed, 2), vshrq_n_u8(packed, 4), vshrq_n_u8(packed, 6)};
            for (int j = 0; j < 4; ++j) u[4 * half + j] = shifted[j];
        }
    } else {
        for (int j = 0; j < 4; ++j) {
            const uint8x16_t packed = vld1q_u8(cell + 64 * j);
            u[j] = vandq_u8(packed, vdupq_n_u8(15));
            u[j + 4] = vshrq_n_u8(packed, 4);
        }
    }
    if constexpr (codes == Codes::u3) {
        const uint8x16_t high = vld1q_u8(cell + 128);
        const uint8x16_t shifted[words] = {high,
                                           vshrq_n_u8(high, 1),
                                           vshrq_n_u8(high, 2),
                                           vshrq_n_u8(high, 3),
                                           vshrq_n_u8(high, 4),
                                           vshrq_n_u8(high, 5),
                                           vshrq_n_u8(high, 6),
                                           vshrq_n_u8(high, 7)};
        for (int j = 0; j < words; ++j) u[j] = vandq_u8(vsliq_n_u8(u[j], shifted[j], 2), vdupq_n_u8(7));
    } else if constexpr (codes == Codes::u2) {
        for (int j = 0; j < words; ++j) u[j] = vandq_u8(u[j], vdupq_n_u8(3));
    }
    for (int j = 0; j < words; ++j) {
        if constexpr (has_table) {
            w[j] = vqtbl1q_s8(constants.table, u[j]);
        } else if constexpr (codes == Codes::u8) {
            w[j] = vreinterpretq_s8_u8(veorq_u8(u[j], vdupq_n_u8(128)));
        } else {
            w[j] = vreinterpretq_s8_u8(u[j]);
        }
    }
}

inline float32x4_t halves(const uint8_t* at) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
}
inline uint8x8_t load_4(const uint8_t* at) {
    uint32_t bytes;
    std::memcpy(&bytes, at, 4);
    return vcreate_u8(bytes);
}

// Where one byte for each of 4 rows from `row` on goes: to the top of a lane.
inline uint8x16_t spread_of(int row) {
    static constexpr uint8_t lanes[16] = {255, 255, 255, 0, 255, 255, 255, 1, 255, 255, 255, 2, 255, 255, 255, 3};
    return vqaddq_u8(vld1q_u8(lanes), vdupq_n_u8(static_cast<uint8_t>(row)));
}
// Turns bytes of all 16 rows into floats of 4.
inline float32x4_t unsigned_bytes(uint8x16_t bytes, uint8x16_t spread) {
    return vcvtq_n_f32_u32(vreinterpretq_u32_u8(vqtbl1q_u8(bytes, spread)), 24);
}
inline float32x4_t signed_bytes(uint8x16_t bytes, uint8x16_t spread) {
    return vcvtq_n_f32_s32(vreinterpretq_s32_u8(vqtbl1q_u8(bytes, spread)), 24);
}

// The scales of a super-block for 4 rows.
struct Head {
    float32x4_t d, m;
};

template <Scales scales>
MEDUSA_INLINE Head load_head(const uint8_t* head, int row) {
    const float32x4_t none = vdupq_n_f32(0);
    if constexpr (head_bytes(scales) == 0) return {none, none};
    if constexpr (!has_min(scales)) return {halves(head + 2 * row), none};
    return {halves(head + 2 * row), vnegq_f32(halves(head + 32 + 2 * row))};
}

struct Scale {
    float32x4_t d, d2, m, m2;
};

// `at`: the cell's scales; `row`: the first of the 4 rows in the group; `spread`: spread_of(row).
template <Scales scales>
MEDUSA_INLINE Scale load_scale(const Head& head, const uint8_t* at, int row, uint8x16_t spread) {
    const float32x4_t none = vdupq_n_f32(0);
    Scale out{none, none, none, none};
    if constexpr (scales == Scales::half) {
        out.d = halves(at + 2 * row);
    } else if constexpr (scales == Scales::half_min) {
        out.d = halves(at + 2 * row);
        out.m = halves(at + 32 + 2 * row);
    } else if constexpr (scales == Scales::exponent) {
        // 2^(e - 128); the smallest two are denormal.
        const uint32x4_t e = vmovl_u16(vget_low_u16(vmovl_u8(load_4(at + row))));
        const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
        const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
        out.d = vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), tiny, normal));
    } else if constexpr (scales == Scales::super_min) {
        out.d = vmulq_f32(head.d, unsigned_bytes(vld1q_u8(at), spread));
        out.m = vmulq_f32(head.m, unsigned_bytes(vld1q_u8(at + 16), spread));
    } else if constexpr (scales == Scales::super_half_min) {
        const uint8x16_t first = vld1q_u8(at), second = vld1q_u8(at + 16), low = vdupq_n_u8(15);
        out.d = vmulq_f32(head.d, unsigned_bytes(vandq_u8(first, low), spread));
        out.d2 = vmulq_f32(head.d, unsigned_bytes(vandq_u8(second, low), spread));
        out.m = vmulq_f32(head.m, unsigned_bytes(vshrq_n_u8(first, 4), spread));
        out.m2 = vmulq_f32(head.m, unsigned_bytes(vshrq_n_u8(second, 4), spread));
    } else if constexpr (scales == Scales::super_half) {
        out.d = vmulq_f32(head.d, signed_bytes(vld1q_u8(at), spread));
        out.d2 = vmulq_f32(head.d, signed_bytes(vld1q_u8(at + 16), spread));
    } else {
        out.d = vmulq_f32(head.d, signed_bytes(vld1q_u8(at), spread));
    }
    return out;
}

// sum + the products of words first..first+3 of a cell with 16 activations.
MEDUSA_INLINE int32x4_t add_products(int32x4_t sum, const int8x16_t* w, int8x16_t q) {
    sum = vdotq_laneq_s32(sum, w[0], q, 0);
    sum = vdotq_laneq_s32(sum, w[1], q, 1);
    sum = vdotq_laneq_s32(sum, w[2], q, 2);
    return vdotq_laneq_s32(sum, w[3], q, 3);
}

// prefetch() of this many lines, one after another.
template <int lines>
MEDUSA_INLINE void prefetch_lines(const uint8_t* at, const uint8_t* last) {
    const uint8_t* end = last - 64 * (lines - 1);
    const uint8_t *later = std::min(at + far_ahead, end), *soon = std::min(at + near_ahead, end);
    for (int i = 0; i < lines; ++i) {
#if defined(__GNUC__)
        __builtin_prefetch(later + 64 * i, 0, 1);
        __builtin_prefetch(soon + 64 * i, 0, 3);
#else
        __prefetch(later + 64 * i);
        __prefetch(soon + 64 * i);
#endif
    }
}

// Activation columns as a tile reads them: cell by cell, and in a cell column by column 32 values, then `starts` times
// four equal integers, then four floats: d and the factor of the mins.
template <Codes codes, Scales scales, bool has_table>
constexpr size_t column_step = cell_columns + 16 * starts<codes, scales, has_table> + 16;

// One column, `step` bytes from one cell to the next.
template <Codes codes, Scales scales, bool has_table>
void lay_out(const Column& column, int64_t cells, char* to, size_t step) {
    for (int64_t cell = 0; cell < cells; ++cell, to += step) {
        const CellSums& sums = column.sums[cell];
        const int8_t* q = column.q + cell * cell_columns;
        auto* values = reinterpret_cast<int8_t*>(to);
        vst1q_s8(values, vld1q_s8(q));
        vst1q_s8(values + 16, vld1q_s8(q + 16));
        auto* start = reinterpret_cast<int32_t*>(to + cell_columns);
        for (int i = 0; i < starts<codes, scales, has_table>; ++i) vst1q_s32(start + 4 * i, vdupq_n_s32(sums.start[i]));
        auto* floats = reinterpret_cast<float*>(start + 4 * starts<codes, scales, has_table>);
        floats[0] = sums.d;
        if constexpr (scales == Scales::super_half_min) {
            floats[1] = sums.d * static_cast<float>(sums.start[0]);
            floats[2] = sums.d * static_cast<float>(sums.start[1]);
        } else {
            floats[1] = sums.all;
        }
    }
}

// The same address, without compilers knowing it: they would keep what many columns have there for the next 4 rows, and
// run out of registers.
template <int columns>
MEDUSA_INLINE const char* again(const char* at) {
#if defined(__GNUC__)
    if constexpr (columns > 2) asm volatile("" : "+r"(at));
#endif
    return at;
}

// Where one cell of a group lies: its codes and its own scales.
template <Codes codes, Scales scales>
struct Place {
    static constexpr Format sizes{GGML_TYPE_F32, codes, scales, 0, nullptr};

    const uint8_t *code, *scale;

    // Once per cell. This is pass number `pass` of `passes` over the same cells: each prefetches its part.
    template <int passes>
    MEDUSA_INLINE void prefetch_ahead(int pass, const uint8_t* last) const {
        constexpr int lines = static_cast<int>(sizes.code_bytes() / 64), share = (lines + passes - 1) / passes;
        prefetch_lines<share>(code + 64 * share * pass, last);
        if (passes == 1 || pass == 0) prefetch(scale, last);
    }
    MEDUSA_INLINE void next() {
        code += sizes.code_bytes();
        scale += own_bytes(scales);
    }
};

// 4 rows of a group, from `first` on.
template <Scales scales>
struct Rows {
    int first;
    uint8x16_t spread;
    Head head;

    MEDUSA_INLINE void read(const uint8_t* at) { head = load_head<scales>(at, first); }
};

template <Scales scales>
MEDUSA_INLINE Rows<scales> rows_from(int first) {
    return {first, spread_of(first), {vdupq_n_f32(0), vdupq_n_f32(0)}};
}

// The cells of a super-block, whose scales are read once; all cells if there is none.
template <Scales scales>
MEDUSA_INLINE int64_t cells_together(int64_t cells) {
    return head_bytes(scales) == 0 ? cells : cells_per_super;
}

// Sums of 4 rows by n columns.
template <int n>
struct Sums {
    float32x4_t of[n];
};

// acc + one cell's products of 4 rows; `column`: the first column's cell.
template <Codes codes, Scales scales, bool has_table, int n>
MEDUSA_INLINE void add_cell(Sums<n>& acc, const Place<codes, scales>& at, const Rows<scales>& rows,
                            const Constants& constants, const char* column) {
    constexpr int begins = starts<codes, scales, has_table>;
    int8x16_t w[words];
    load_codes<codes, has_table>(at.code + 4 * rows.first, constants, w);
    const Scale s = load_scale<scales>(rows.head, at.scale, rows.first, rows.spread);
    column = again<n>(column);
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c, column += column_step<codes, scales, has_table>) {
        const auto* q = reinterpret_cast<const int8_t*>(column);
        const auto* start = reinterpret_cast<const int32_t*>(q + cell_columns);
        const float32x4_t sums = vld1q_f32(reinterpret_cast<const float*>(start + 4 * begins));
        int32x4_t dot = add_products(begins > 0 ? vld1q_s32(start) : vdupq_n_s32(0), w, vld1q_s8(q));
        if constexpr (has_halves(scales)) {
            acc.of[c] = vfmaq_f32(acc.of[c], vcvtq_f32_s32(dot), vmulq_laneq_f32(s.d, sums, 0));
            dot = add_products(begins > 1 ? vld1q_s32(start + 4) : vdupq_n_s32(0), w + 4, vld1q_s8(q + 16));
            acc.of[c] = vfmaq_f32(acc.of[c], vcvtq_f32_s32(dot), vmulq_laneq_f32(s.d2, sums, 0));
        } else {
            dot = add_products(dot, w + 4, vld1q_s8(q + 16));
            acc.of[c] = vfmaq_f32(acc.of[c], vcvtq_f32_s32(dot), vmulq_laneq_f32(s.d, sums, 0));
        }
        if constexpr (has_min(scales)) acc.of[c] = vfmaq_laneq_f32(acc.of[c], s.m, sums, 1);
        if constexpr (scales == Scales::super_half_min) acc.of[c] = vfmaq_laneq_f32(acc.of[c], s.m2, sums, 2);
    }
}

template <int n>
MEDUSA_INLINE void store(const Sums<n>& acc, float* result, size_t result_stride) {
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) vst1q_f32(result + c * result_stride, acc.of[c]);
}

// Rows first..first+rows_at_once(n)-1 of a group times n columns.
template <Codes codes, Scales scales, bool has_table, int n>
void multiply_tile(const uint8_t* code, const uint8_t* scale, int64_t cells, int first, const Constants& constants,
                   const char* column, float* result, size_t result_stride) {
    constexpr int at_once = rows_at_once(n), quads = at_once / quad;
    const Constants own = constants;
    Sums<n> acc[quads] = {};
    Rows<scales> rows[4] = {rows_from<scales>(first), rows_from<scales>(first + quad),
                            rows_from<scales>(first + 2 * quad), rows_from<scales>(first + 3 * quad)};
    Place<codes, scales> at{code, scale};
    for (int64_t cell = 0; cell < cells;) {
        for (int i = 0; i < quads; ++i) rows[i].read(at.scale);
        at.scale += head_bytes(scales);
        for (const int64_t end = cell + cells_together<scales>(cells); cell < end; ++cell) {
            at.template prefetch_ahead<group_rows / at_once>(first / at_once, own.last);
            // Written out: compilers keep the sums in registers only if they see these indices early.
            constexpr auto add = add_cell<codes, scales, has_table, n>;
            add(acc[0], at, rows[0], own, column);
            if constexpr (quads > 1) add(acc[1], at, rows[1], own, column);
            if constexpr (quads > 2) {
                add(acc[2], at, rows[2], own, column);
                add(acc[3], at, rows[3], own, column);
            }
            at.next();
            column += n * column_step<codes, scales, has_table>;
        }
    }
    store(acc[0], result, result_stride);
    if constexpr (quads > 1) store(acc[1], result + quad, result_stride);
    if constexpr (quads > 2) {
        store(acc[2], result + 2 * quad, result_stride);
        store(acc[3], result + 3 * quad, result_stride);
    }
}

// Where a group of rows lies.
struct Group {
    const uint8_t *code, *scale;
    float* result;
};

inline Group group_at(const Job& job, int64_t index) {
    const uint8_t* code = job.group(index);
    return {code, code + static_cast<size_t>(job.columns / cell_columns) * job.format.code_bytes(),
            job.result + index * group_rows};
}

inline Constants constants_of(const Job& job) {
    const Format& format = job.format;
    return {format.table ? vld1q_s8(format.table) : vdupq_n_s8(0), job.last_line()};
}

// Memory of a thread for rearranged activations, until its next call.
inline char* scratch(size_t bytes) {
    struct alignas(64) Line {
        char bytes[64];
    };
    thread_local std::vector<Line> lines;
    if (lines.size() * sizeof(Line) < bytes) lines.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
    return reinterpret_cast<char*>(lines.data());
}

// Calls multiply_strip(part) for parts with few enough columns that the second-level cache holds them rearranged,
// nearly equal in width, without splitting pairs of columns.
template <typename Strip>
void in_strips(const Job& job, const Strip& multiply_strip) {
    constexpr int widest = 3 * tile_columns;
    const int strips = (job.n + widest - 1) / widest;
    for (int i = 0, first = 0; i < strips; ++i) {
        const int end = i + 1 < strips ? job.n * (i + 1) / strips / 2 * 2 : job.n;
        multiply_strip(Job{job.format, job.packed, job.columns, job.begin, job.end, job.column(first), job.stride,
                           end - first, job.result + first * job.result_stride, job.result_stride});
        first = end;
    }
}

using TileFunction = void (*)(const uint8_t*, const uint8_t*, int64_t, int, const Constants&, const char*, float*,
                              size_t);

// The whole job with multiply_tile(), in tiles of 1..widest columns, all nearly equal in width.
template <Codes codes, Scales scales, bool has_table, int... before>
void run_by_dots(const Job& job, std::integer_sequence<int, before...>) {
    constexpr int widest = sizeof...(before);
    static constexpr TileFunction functions[] = {multiply_tile<codes, scales, has_table, before + 1>...};
    const Constants constants = constants_of(job);
    const int64_t cells = job.columns / cell_columns;
    const int tiles = (job.n + widest - 1) / widest;
    constexpr size_t step = column_step<codes, scales, has_table>;
    const size_t column_size = static_cast<size_t>(cells) * step;
    char* columns = scratch(static_cast<size_t>(job.n) * column_size);
    for (int tile = 0; tile < tiles; ++tile) {
        const int first = job.n * tile / tiles, n = job.n * (tile + 1) / tiles - first;
        for (int c = 0; c < n; ++c) {
            lay_out<codes, scales, has_table>(column_at(job, first + c), cells,
                                              columns + first * column_size + c * step, n * step);
        }
    }
    for (int64_t index = job.begin; index < job.end; ++index) {
        const Group group = group_at(job, index);
        for (int tile = 0; tile < tiles; ++tile) {
            const int first = job.n * tile / tiles, n = job.n * (tile + 1) / tiles - first;
            for (int row = 0; row < group_rows; row += rows_at_once(n)) {
                functions[n - 1](group.code, group.scale, cells, row, constants, columns + first * column_size,
                                 group.result + first * job.result_stride + row, job.result_stride);
            }
        }
    }
}

void quantize(const Format& format, const float* x, int64_t columns, void* column) {
    int8_t* q = column_values(column);
    CellSums* sums = column_sums(column, columns);
    const bool two = has_halves(format.scales);
    for (int64_t cell = 0; cell < columns / cell_columns; ++cell, x += cell_columns, q += cell_columns) {
        float32x4_t v[8], size = vdupq_n_f32(0);
        for (int i = 0; i < 8; ++i) {
            v[i] = vld1q_f32(x + 4 * i);
            size = vmaxq_f32(size, vabsq_f32(v[i]));  // a NaN stays
        }
        const float largest = vmaxvq_f32(size);
        const float d = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
        int16x8_t rounded[4];
        for (int i = 0; i < 4; ++i) {
            int16x4_t part[2];
            for (int j = 0; j < 2; ++j) {
                const float32x4_t scaled = vmulq_n_f32(v[2 * i + j], inverse);
                const uint32x4_t sane = vcleq_f32(vabsq_f32(scaled), vdupq_n_f32(127.5f));
                part[j] = vmovn_s32(vandq_s32(vcvtnq_s32_f32(scaled), vreinterpretq_s32_u32(sane)));
            }
            rounded[i] = vcombine_s16(part[0], part[1]);
        }
        int32_t sum[2];
        for (int half = 0; half < 2; ++half) {
            const int8x16_t bytes = vcombine_s8(vmovn_s16(rounded[2 * half]), vmovn_s16(rounded[2 * half + 1]));
            vst1q_s8(q + 16 * half, bytes);
            sum[half] = vaddlvq_s8(bytes);
        }
        const int32_t all = sum[0] + sum[1];
        sums[cell].d = d;
        sums[cell].all = d * static_cast<float>(all);
        sums[cell].start[0] = -format.zero * (two ? sum[0] : all);
        sums[cell].start[1] = two ? -format.zero * sum[1] : 0;
    }
}

}  // namespace
}  // namespace medusa::kernels
