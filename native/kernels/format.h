// Weights as the kernels read them: 16 rows interleaved, still compressed.
//
// A row group is 16 rows; where rows do not fill the last one, its other lanes are zero. Columns are divided into cells
// of 32. A cell's codes are unsigned integers u of 2 to 6 or 8 bits; weight = d * u + m, where d and m are constant for
// one row over a cell (or half a cell). The codes of all cells of a group come first, cell by cell, then the scales, in
// the order of `scale_bytes()`. Matrices of floats stay as they are: 16 rows of one column, then of the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ggml.h"

namespace medusa::kernels {

inline constexpr int group_rows = 16;
inline constexpr int cell_columns = 32;
inline constexpr int cells_per_super = 8;  // a K-quant's super-block of 256

enum class Codes { u2, u3, u4, u5, u6, u8, f16, bf16, f32 };

constexpr size_t bits_of(Codes codes) {
    constexpr size_t bits[] = {2, 3, 4, 5, 6, 8, 16, 16, 32};
    return bits[static_cast<size_t>(codes)];
}

// How d and m are stored.
enum class Scales {
    half,            // per cell: f16 d[16]; m follows from the zero point
    half_min,        // per cell: f16 d[16], f16 m[16]
    super_min,       // per super-block: f16 d[16], f16 dmin[16]; per cell: u8 scale[16], u8 min[16]
    super_half_min,  // per super-block: f16 d[16], f16 dmin[16]; per half cell: u8 scale[16] in the low nibbles, min
    super_half,      // per super-block: f16 d[16]; per half cell: s8 scale[16]
    super_cell,      // per super-block: f16 d[16]; per cell: s8 scale[16]
    exponent,        // per cell: u8 e[16], d = 2^(e - 128)
    none,            // floats
};
constexpr bool has_min(Scales scales) {
    return scales == Scales::half_min || scales == Scales::super_min || scales == Scales::super_half_min;
}
// Whether each half of a cell has its own scales.
constexpr bool has_halves(Scales scales) {
    return scales == Scales::super_half || scales == Scales::super_half_min;
}

// Bytes of a cell's own scales.
constexpr size_t own_bytes(Scales scales) {
    if (scales == Scales::none) return 0;
    if (scales == Scales::half_min) return 64;
    return scales == Scales::super_cell || scales == Scales::exponent ? 16 : 32;
}

// Bytes of a super-block's scales, which come before its cells' own; 0: it has none.
constexpr size_t head_bytes(Scales scales) {
    if (scales == Scales::super_min || scales == Scales::super_half_min) return 64;
    return scales == Scales::super_half || scales == Scales::super_cell ? 32 : 0;
}

// What one ggml type turns into.
struct Format {
    ggml_type type;
    Codes codes;
    Scales scales;
    int zero;             // m = -zero * d, unless stored
    const int8_t* table;  // codes index a table of signed values, stored + 128; nullptr: the code is the value

    constexpr size_t code_bytes() const { return bits_of(codes) * group_rows * cell_columns / 8; }  // of one cell
    constexpr size_t scale_bytes(int64_t cells) const {
        const auto n = static_cast<size_t>(cells);
        return n * own_bytes(scales) + n / cells_per_super * head_bytes(scales);
    }
    constexpr size_t group_bytes(int64_t columns) const {
        const int64_t cells = columns / cell_columns;
        return static_cast<size_t>(cells) * code_bytes() + (scale_bytes(cells) + 63) / 64 * 64;
    }
    constexpr bool is_float() const { return scales == Scales::none; }
    constexpr bool has_super() const { return head_bytes(scales) > 0; }
};

inline constexpr int8_t iq4_values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t mxfp4_values[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline constexpr Format formats[] = {
    {GGML_TYPE_Q4_0, Codes::u4, Scales::half, 8, nullptr},
    {GGML_TYPE_Q4_1, Codes::u4, Scales::half_min, 0, nullptr},
    {GGML_TYPE_Q5_0, Codes::u5, Scales::half, 16, nullptr},
    {GGML_TYPE_Q5_1, Codes::u5, Scales::half_min, 0, nullptr},
    {GGML_TYPE_Q8_0, Codes::u8, Scales::half, 128, nullptr},
    {GGML_TYPE_IQ4_NL, Codes::u4, Scales::half, 128, iq4_values},
    {GGML_TYPE_MXFP4, Codes::u4, Scales::exponent, 128, mxfp4_values},
    {GGML_TYPE_Q2_K, Codes::u2, Scales::super_half_min, -1, nullptr},
    {GGML_TYPE_Q3_K, Codes::u3, Scales::super_half, 4, nullptr},
    {GGML_TYPE_Q4_K, Codes::u4, Scales::super_min, 0, nullptr},
    {GGML_TYPE_Q5_K, Codes::u5, Scales::super_min, 0, nullptr},
    {GGML_TYPE_Q6_K, Codes::u6, Scales::super_half, 32, nullptr},
    {GGML_TYPE_IQ4_XS, Codes::u4, Scales::super_cell, 128, iq4_values},
    {GGML_TYPE_TQ1_0, Codes::u2, Scales::super_cell, 1, nullptr},
    {GGML_TYPE_TQ2_0, Codes::u2, Scales::super_cell, 1, nullptr},
    {GGML_TYPE_F16, Codes::f16, Scales::none, 0, nullptr},
    {GGML_TYPE_BF16, Codes::bf16, Scales::none, 0, nullptr},
    {GGML_TYPE_F32, Codes::f32, Scales::none, 0, nullptr},
};

// nullptr: no kernel for this type.
const Format* format_of(ggml_type type);
// Names of all types that have kernels.
std::vector<std::string> type_names();
// Whether a matrix with this many columns fills whole blocks.
bool fits(const Format& format, int64_t columns);
constexpr int64_t groups_of(int64_t rows) {
    return (rows + group_rows - 1) / group_rows;
}
// Bytes of the packed matrix.
size_t packed_bytes(const Format& format, int64_t columns, int64_t rows);
// Packs groups begin..end-1 of a matrix [rows, columns] in ggml's layout.
void pack(const Format& format, const void* source, void* target, int64_t columns, int64_t rows, int64_t begin,
          int64_t end);

// One activation column for a format: floats as they are, or quantized per cell: values[columns], then one of these for
// each cell.
struct CellSums {
    float d;    // value = d * q
    float all;  // d * sum of q: m is multiplied by it
    // -zero * sum of q, where the dot products start: for the whole cell, or for its two halves. If halves have a min,
    // the sum itself.
    int32_t start[2];
};
constexpr size_t quantized_column_bytes(int64_t columns) {
    return (static_cast<size_t>(columns) + 63) / 64 * 64 +
           static_cast<size_t>(columns / cell_columns) * sizeof(CellSums);
}
constexpr size_t column_bytes(const Format& format, int64_t columns) {
    return format.is_float() ? static_cast<size_t>(columns) * sizeof(float) : quantized_column_bytes(columns);
}
inline int8_t* column_values(void* column) {
    return static_cast<int8_t*>(column);
}
inline const CellSums* column_sums(const void* column, int64_t columns) {
    return reinterpret_cast<const CellSums*>(static_cast<const char*>(column) +
                                             (static_cast<size_t>(columns) + 63) / 64 * 64);
}
inline CellSums* column_sums(void* column, int64_t columns) {
    return reinterpret_cast<CellSums*>(static_cast<char*>(column) + (static_cast<size_t>(columns) + 63) / 64 * 64);
}

struct Attention;  // attention.h
struct AttentionShare;
struct DeltaNet;  // delta_net.h

// Rows of groups begin..end-1 times n activation columns (`stride` bytes apart); result[c * result_stride + row]. Each
// result depends only on its own row and column, whatever n, and has the same bits on every instruction set.
struct Job {
    const Format& format;
    const void* packed;
    int64_t columns, begin, end;
    const void* activations;
    size_t stride;
    int n;
    float* result;
    size_t result_stride;

    const uint8_t* group(int64_t index) const {
        return static_cast<const uint8_t*>(packed) + static_cast<size_t>(index) * format.group_bytes(columns);
    }
    const uint8_t* last_line() const { return group(end) - 64; }
    const char* column(int c) const { return static_cast<const char*>(activations) + static_cast<size_t>(c) * stride; }
};
using Multiply = void (*)(const Job& job);

// One instruction set's kernels. product.h calls those that a format needs.
struct Kernels {
    const char* name;
    // Quantizes `columns` floats into one activation column. Gives the same bits on every instruction set.
    void (*quantize)(const Format& format, const float* x, int64_t columns, void* column);
    Multiply multiply;         // for quantized formats
    Multiply multiply_floats;  // for the others
    // One part's share of one phase of an attention, see attention.h.
    void (*attend)(const Attention& attention, const AttentionShare& share, int phase);
    // Rows begin..end-1 of the states of a gated delta net, multiples of delta_net_rows. nullptr: not served.
    void (*delta_net)(const DeltaNet& net, int64_t begin, int64_t end) = nullptr;
};

void attend_scalar(const Attention& attention, const AttentionShare& share, int phase);
void delta_net_scalar(const DeltaNet& net, int64_t begin, int64_t end);
#if defined(__x86_64__) || defined(_M_X64)
void quantize_avx2(const Format& format, const float* x, int64_t columns, void* column);
void quantize_avx512(const Format& format, const float* x, int64_t columns, void* column);
void attend_avx2(const Attention& attention, const AttentionShare& share, int phase);
void attend_avx512(const Attention& attention, const AttentionShare& share, int phase);
void multiply_q2_k_avx2(const Job& job);
void multiply_floats_avx2(const Job& job);
void multiply_floats_avx512(const Job& job);
void delta_net_avx2(const DeltaNet& net, int64_t begin, int64_t end);
void delta_net_avx512(const DeltaNet& net, int64_t begin, int64_t end);
#elif defined(__aarch64__) || defined(_M_ARM64)
void attend_neon(const Attention& attention, const AttentionShare& share, int phase);
void multiply_floats_neon(const Job& job);
void delta_net_neon(const DeltaNet& net, int64_t begin, int64_t end);
#endif

extern const Kernels scalar;
#if defined(__x86_64__) || defined(_M_X64)
extern const Kernels avx2;
extern const Kernels avxvnni;
extern const Kernels avx512vnni;
#if MEDUSA_HAS_AMX  // set if flags.cmake keeps the file
extern const Kernels amx_int8;
#endif
#elif defined(__aarch64__) || defined(_M_ARM64)
extern const Kernels neon_dotprod;
extern const Kernels neon_i8mm;
#endif

// Whether the processor (and ggml, built for it) has half-precision vectors.
bool has_avx512fp16();

// All kernels that this processor can run, the best last.
std::vector<const Kernels*> supported_kernels();
// The best kernels for this processor, or those MEDUSA_ISA names; nullptr: off, or nothing that is faster than stock
// code.
const Kernels* select_kernels();

}  // namespace medusa::kernels
