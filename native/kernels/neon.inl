// 4 rows in the lanes of a register, up to 8 activation columns at a time. See scalar.cpp for what is computed.
// Included inside the anonymous namespace of each file.
//
// Codes lose their zero point as they are unpacked, since sdot and smmla take signed weights: the sums then start from
// 0 instead of CellSums::start and come out the same.

// Sums stay in registers only where what adds to them is inlined.
#if defined(_MSC_VER)
#define MEDUSA_INLINE __forceinline
#else
#define MEDUSA_INLINE __attribute__((always_inline)) inline
#endif

constexpr int tile_columns = 8;
constexpr int words = 8;  // a cell is 8 registers of 4 rows x 4 columns
constexpr int quad = 4;   // rows in a register
// Rows of a group that pass over n columns together: their sums and the weights of 4 rows fill half of 32 registers.
constexpr int rows_at_once(int n) {
    return n <= 2 ? group_rows : n <= 4 ? group_rows / 2 : quad;
}

struct Constants {
    int8x16_t table;
    uint8x16_t zero;
    const uint8_t* last;  // see prefetch()
};

// `cell` points at the first byte of these 4 rows.
template <Codes codes, Scales scales, bool has_table>
MEDUSA_INLINE void load_codes(const uint8_t* cell, const Constants& constants, int8x16_t (&w)[words]) {
    uint8x16_t u[words];
    if constexpr (codes == Codes::u8) {
        for (int j = 0; j < words; ++j) u[j] = vld1q_u8(cell + 64 * j);
    } else if constexpr (codes == Codes::u2 || codes == Codes::u3) {
        for (int half = 0; half < 2; ++half) {
            const uint8x16_t packed = vld1q_u8(cell + 64 * half);
            const uint8x16_t shifted[4] = {packed, vshrq_n_u8(packed, 2), vshrq_n_u8(packed, 4), vshrq_n_u8(packed, 6)};
            for (int j = 0; j < 4; ++j) u[4 * half + j] = vandq_u8(shifted[j], vdupq_n_u8(3));
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
        const uint8x16_t shifted[words] = {vshlq_n_u8(high, 2), vshlq_n_u8(high, 1), high,
                                           vshrq_n_u8(high, 1), vshrq_n_u8(high, 2), vshrq_n_u8(high, 3),
                                           vshrq_n_u8(high, 4), vshrq_n_u8(high, 5)};
        for (int j = 0; j < words; ++j) u[j] = vorrq_u8(u[j], vandq_u8(shifted[j], vdupq_n_u8(4)));
    }
    if constexpr (codes == Codes::u5) {
        const uint8x16_t high = vld1q_u8(cell + 256);
        const uint8x16_t shifted[words] = {
            vshlq_n_u8(high, 4), vshlq_n_u8(high, 3), vshlq_n_u8(high, 2), vshlq_n_u8(high, 1), high,
            vshrq_n_u8(high, 1), vshrq_n_u8(high, 2), vshrq_n_u8(high, 3)};
        for (int j = 0; j < words; ++j) u[j] = vorrq_u8(u[j], vandq_u8(shifted[j], vdupq_n_u8(0x10)));
    }
    if constexpr (codes == Codes::u6) {
        for (int half = 0; half < 2; ++half) {
            const uint8x16_t high = vld1q_u8(cell + 256 + 64 * half);
            const uint8x16_t shifted[4] = {vshlq_n_u8(high, 4), vshlq_n_u8(high, 2), high, vshrq_n_u8(high, 2)};
            for (int j = 0; j < 4; ++j) {
                u[4 * half + j] = vorrq_u8(u[4 * half + j], vandq_u8(shifted[j], vdupq_n_u8(0x30)));
            }
        }
    }
    for (int j = 0; j < words; ++j) {
        if constexpr (has_table) {
            w[j] = vqtbl1q_s8(constants.table, u[j]);
        } else if constexpr (has_min(scales)) {
            w[j] = vreinterpretq_s8_u8(u[j]);
        } else {
            w[j] = vreinterpretq_s8_u8(vsubq_u8(u[j], constants.zero));
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
inline uint32x4_t integers(const uint8_t* at) {
    return vmovl_u16(vget_low_u16(vmovl_u8(load_4(at))));
}
inline float32x4_t unsigned_bytes(const uint8_t* at) {
    return vcvtq_f32_u32(integers(at));
}
inline float32x4_t signed_bytes(const uint8_t* at) {
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_4(at))))));
}

inline float32x4_t low_nibbles(const uint8_t* at) {
    return vcvtq_f32_u32(vandq_u32(integers(at), vdupq_n_u32(15)));
}
inline float32x4_t high_nibbles(const uint8_t* at) {
    return vcvtq_f32_u32(vshrq_n_u32(integers(at), 4));
}

struct Scale {
    float32x4_t d, d2, m, m2;
};

// `head`: the super-block's scales; `at`: the cell's; `row`: the first of the 4 rows in the group.
template <Scales scales>
MEDUSA_INLINE Scale load_scale(const uint8_t* head, const uint8_t* at, int row) {
    const float32x4_t none = vdupq_n_f32(0);
    Scale out{none, none, none, none};
    if constexpr (scales == Scales::half) {
        out.d = halves(at + 2 * row);
    } else if constexpr (scales == Scales::half_min) {
        out.d = halves(at + 2 * row);
        out.m = halves(at + 32 + 2 * row);
    } else if constexpr (scales == Scales::exponent) {
        // 2^(e - 128); the smallest two are denormal.
        const uint32x4_t e = integers(at + row);
        const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
        const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
        out.d = vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), tiny, normal));
    } else if constexpr (scales == Scales::super_min) {
        out.d = vmulq_f32(halves(head + 2 * row), unsigned_bytes(at + row));
        out.m = vmulq_f32(vnegq_f32(halves(head + 32 + 2 * row)), unsigned_bytes(at + 16 + row));
    } else if constexpr (scales == Scales::super_half_min) {
        const float32x4_t d = halves(head + 2 * row), min = vnegq_f32(halves(head + 32 + 2 * row));
        out.d = vmulq_f32(d, low_nibbles(at + row));
        out.d2 = vmulq_f32(d, low_nibbles(at + 16 + row));
        out.m = vmulq_f32(min, high_nibbles(at + row));
        out.m2 = vmulq_f32(min, high_nibbles(at + 16 + row));
    } else if constexpr (scales == Scales::super_half) {
        out.d = vmulq_f32(halves(head + 2 * row), signed_bytes(at + row));
        out.d2 = vmulq_f32(halves(head + 2 * row), signed_bytes(at + 16 + row));
    } else {
        out.d = vmulq_f32(halves(head + 2 * row), signed_bytes(at + row));
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

// Sums of 4 rows by n columns.
template <int n>
struct Sums {
    float32x4_t of[n];
};

// acc + one cell's products of the 4 rows from `row` on.
template <Codes codes, Scales scales, bool has_table, int n>
MEDUSA_INLINE void add_cell(Sums<n>& acc, const uint8_t* code, const uint8_t* head, const uint8_t* scale, int row,
                            const Constants& constants, const Column* column, int64_t cell) {
    int8x16_t w[words];
    load_codes<codes, scales, has_table>(code + 4 * row, constants, w);
    const Scale s = load_scale<scales>(head, scale, row);
#pragma GCC unroll 8
    for (int c = 0; c < n; ++c) {
        const CellSums& sums = column[c].sums[cell];
        const int8_t* q = column[c].q + cell * cell_columns;
        int32x4_t dot = add_products(vdupq_n_s32(0), w, vld1q_s8(q));
        if constexpr (has_halves(scales)) {
            acc.of[c] = vfmaq_f32(acc.of[c], vcvtq_f32_s32(dot), vmulq_n_f32(s.d, sums.d));
            dot = add_products(vdupq_n_s32(0), w + 4, vld1q_s8(q + 16));
            acc.of[c] = vfmaq_f32(acc.of[c], vcvtq_f32_s32(dot), vmulq_n_f32(s.d2, sums.d));
        } else {
            dot = add_products(dot, w + 4, vld1q_s8(q + 16));
            acc.of[c] = vfmaq_f32(acc.of[c], vcvtq_f32_s32(dot), vmulq_n_f32(s.d, sums.d));
        }
        if constexpr (scales == Scales::super_half_min) {
            acc.of[c] = vfmaq_n_f32(acc.of[c], s.m, sums.d * static_cast<float>(sums.start[0]));
            acc.of[c] = vfmaq_n_f32(acc.of[c], s.m2, sums.d * static_cast<float>(sums.start[1]));
        } else if constexpr (has_min(scales)) {
            acc.of[c] = vfmaq_n_f32(acc.of[c], s.m, sums.all);
        }
    }
}

template <int n>
MEDUSA_INLINE void store(const Sums<n>& acc, float* result, size_t result_stride) {
    for (int c = 0; c < n; ++c) vst1q_f32(result + c * result_stride, acc.of[c]);
}

// Calls step(cell, code, head, scale) for every cell of a group: where the cell's codes, its super-block's scales and
// its own are.
template <Codes codes, Scales scales, typename Step>
MEDUSA_INLINE void for_each_cell(const uint8_t* code, const uint8_t* scale, int64_t cells, const uint8_t* last,
                                 const Step& step) {
    constexpr Format sizes{GGML_TYPE_F32, codes, scales, 0, nullptr};
    const uint8_t* head = scale;
    for (int64_t cell = 0; cell < cells; ++cell) {
        if (head_bytes<scales> != 0 && cell % cells_per_super == 0) {
            head = scale;
            scale += head_bytes<scales>;
        }
        for (size_t line = 0; line < sizes.code_bytes(); line += 64) prefetch(code + line, last);
        prefetch(scale, last);
        step(cell, code, head, scale);
        code += sizes.code_bytes();
        scale += own_bytes<scales>;
    }
}

// Rows first..first+rows_at_once(n)-1 of a group times n columns.
template <Codes codes, Scales scales, bool has_table, int n>
void multiply_tile(const uint8_t* code, const uint8_t* scale, int64_t cells, int first, const Constants& constants,
                   const Column* column, float* result, size_t result_stride) {
    constexpr int quads = rows_at_once(n) / quad;
    Sums<n> acc[quads] = {};
    const auto step = [&](int64_t cell, const uint8_t* at, const uint8_t* head, const uint8_t* own) {
        // Written out: compilers keep the sums in registers only if they see these indices early.
        constexpr auto add = add_cell<codes, scales, has_table, n>;
        add(acc[0], at, head, own, first, constants, column, cell);
        if constexpr (quads > 1) add(acc[1], at, head, own, first + quad, constants, column, cell);
        if constexpr (quads > 2) {
            add(acc[2], at, head, own, first + 2 * quad, constants, column, cell);
            add(acc[3], at, head, own, first + 3 * quad, constants, column, cell);
        }
    };
    for_each_cell<codes, scales>(code, scale, cells, constants.last, step);
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
    const auto* code = static_cast<const uint8_t*>(job.packed) + index * job.format.group_bytes(job.columns);
    return {code, code + static_cast<size_t>(job.columns / cell_columns) * job.format.code_bytes(),
            job.result + index * group_rows};
}

inline Constants constants_of(const Job& job) {
    const Format& format = job.format;
    return {format.table ? vld1q_s8(format.table) : vdupq_n_s8(0), vdupq_n_u8(static_cast<uint8_t>(format.zero)),
            job.last_line()};
}

inline Column column_at(const Job& job, int c) {
    const auto* base = static_cast<const char*>(job.activations) + c * job.stride;
    return {reinterpret_cast<const int8_t*>(base), column_sums(base, job.columns)};
}

using TileFunction = void (*)(const uint8_t*, const uint8_t*, int64_t, int, const Constants&, const Column*, float*,
                              size_t);

// The whole job with multiply_tile(), in tiles of 1..widest columns.
template <Codes codes, Scales scales, bool has_table, int... before>
void run_by_dots(const Job& job, std::integer_sequence<int, before...>) {
    constexpr int widest = sizeof...(before);
    static constexpr TileFunction tiles[] = {multiply_tile<codes, scales, has_table, before + 1>...};
    const Constants constants = constants_of(job);
    const int64_t cells = job.columns / cell_columns;
    for (int64_t index = job.begin; index < job.end; ++index) {
        const Group group = group_at(job, index);
        for (int begin = 0; begin < job.n; begin += widest) {
            const int n = std::min(widest, job.n - begin);
            Column column[widest];
            for (int c = 0; c < n; ++c) column[c] = column_at(job, begin + c);
            for (int first = 0; first < group_rows; first += rows_at_once(n)) {
                tiles[n - 1](group.code, group.scale, cells, first, constants, column,
                             group.result + begin * job.result_stride + first, job.result_stride);
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
