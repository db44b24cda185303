#include "kernels/format.h"

#include <algorithm>
#include <cstring>

namespace medusa::kernels {
namespace {

using Bytes = const uint8_t*;

// Digit `i` of the number in base 3 that fills a byte as a fraction of 243.
uint8_t ternary(uint8_t byte, int i) {
    constexpr int powers[] = {1, 3, 9, 27, 81};
    return static_cast<uint8_t>((byte * powers[i] & 255) * 3 >> 8);
}

// TQ1_0: 48 bytes of five digits each, 32 and then 16 side by side, and 4 bytes of four.
uint8_t tq1_code(Bytes super, int i) {
    if (i < 160) return ternary(super[i % 32], i / 32);
    if (i < 240) return ternary(super[32 + i % 16], (i - 160) / 16);
    return ternary(super[48 + i % 4], (i - 240) / 4);
}

// Run `sub` of a super-block's 2-bit codes, which come in halves of 128: 32 bytes serve four runs of 32.
void read_pairs(Bytes pairs, int sub, uint8_t* u) {
    for (int i = 0; i < 32; ++i) u[i] = pairs[sub / 4 * 32 + i] >> (2 * (sub % 4)) & 3;
}

// Bit `to` of each code: bit `sub` of the byte that the codes of all runs share.
void add_bits(Bytes plane, int sub, int to, uint8_t* u) {
    for (int i = 0; i < 32; ++i) u[i] |= (plane[i] >> sub & 1) << to;
}

// The 32 codes of cell `cell` of a row in ggml's layout.
void read_codes(ggml_type type, Bytes row, int64_t cell, uint8_t* u) {
    const auto size = static_cast<int64_t>(ggml_type_size(type));  // of a block: a cell, or a super-block
    const Bytes super = row + cell / cells_per_super * size;
    const int sub = static_cast<int>(cell % cells_per_super);
    const auto nibbles = [&](Bytes qs) {
        for (int i = 0; i < 16; ++i) u[i] = qs[i] & 15, u[i + 16] = qs[i] >> 4;
    };
    switch (type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_IQ4_NL:
            return nibbles(row + cell * size + 2);
        case GGML_TYPE_Q4_1:
            return nibbles(row + cell * size + 4);
        case GGML_TYPE_MXFP4:
            return nibbles(row + cell * size + 1);
        case GGML_TYPE_IQ4_XS:
            return nibbles(super + 8 + sub * 16);
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1: {
            const Bytes block = row + cell * size + (type == GGML_TYPE_Q5_0 ? 2 : 4);
            uint32_t high;
            std::memcpy(&high, block, 4);
            nibbles(block + 4);
            for (int i = 0; i < 32; ++i) u[i] |= (high >> i & 1) << 4;
            return;
        }
        case GGML_TYPE_Q8_0:
            for (int i = 0; i < 32; ++i) u[i] = row[cell * size + 2 + i] ^ 0x80;
            return;
        case GGML_TYPE_Q2_K:
            return read_pairs(super + 16, sub, u);
        case GGML_TYPE_TQ2_0:
            return read_pairs(super, sub, u);
        case GGML_TYPE_Q3_K:
            read_pairs(super + 32, sub, u);
            return add_bits(super, sub, 2, u);
        case GGML_TYPE_TQ1_0:
            for (int i = 0; i < 32; ++i) u[i] = tq1_code(super, sub * 32 + i);
            return;
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: {
            // Two sub-blocks share 32 bytes: low nibbles, then high nibbles.
            const Bytes qs = super + (type == GGML_TYPE_Q4_K ? 16 : 48) + sub / 2 * 32;
            for (int i = 0; i < 32; ++i) u[i] = sub % 2 ? qs[i] >> 4 : qs[i] & 15;
            if (type == GGML_TYPE_Q5_K) add_bits(super + 16, sub, 4, u);
            return;
        }
        case GGML_TYPE_Q6_K: {
            // Halves of 128: 64 bytes of low nibbles and 32 bytes of 2-bit pairs serve four runs of 32.
            const int half = sub / 4, run = sub % 4;
            const Bytes low = super + half * 64 + run % 2 * 32, high = super + 128 + half * 32;
            for (int i = 0; i < 32; ++i) {
                u[i] = (run < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * run) & 3) << 4;
            }
            return;
        }
        default:
            std::memset(u, 0, 32);
    }
}

// Scale and min of sub-block `sub` of a Q4_K or Q5_K super-block: 6 bits each, packed in 12 bytes.
void read_k_scale(Bytes packed, int sub, uint8_t& scale, uint8_t& min) {
    if (sub < 4) {
        scale = packed[sub] & 63;
        min = packed[sub + 4] & 63;
    } else {
        scale = (packed[sub + 4] & 15) | (packed[sub - 4] >> 6) << 4;
        min = (packed[sub + 4] >> 4) | (packed[sub] >> 6) << 4;
    }
}

// Scale `i` of the 16 of a Q3_K super-block: 4 low bits in 8 bytes, then 2 high bits in 4 bytes.
uint8_t read_q3_scale(Bytes packed, int i) {
    const int low = packed[i % 8] >> (i < 8 ? 0 : 4) & 15, high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
    return static_cast<uint8_t>((low | high << 4) - 32);
}

// Where the scales of one cell go: `at` for its own, `super` for those of its super-block.
struct ScaleSlots {
    uint8_t* at;
    uint8_t* super;
};

ScaleSlots slots(const Format& format, uint8_t* scales, int64_t cell) {
    const size_t own = own_bytes(format.scales), head = head_bytes(format.scales);
    uint8_t* super = scales + cell / cells_per_super * format.scale_bytes(cells_per_super);
    return {super + head + cell % cells_per_super * own, super};
}

void copy_half(uint8_t* target, int lane, Bytes source) {
    std::memcpy(target + 2 * lane, source, 2);
}

void pack_scales(const Format& format, Bytes row, int64_t cell, int lane, ScaleSlots to) {
    const auto size = static_cast<int64_t>(ggml_type_size(format.type));
    const Bytes super = row + cell / cells_per_super * size;
    const int sub = static_cast<int>(cell % cells_per_super);
    switch (format.type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q8_0:
            return copy_half(to.at, lane, row + cell * size);
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_1:
            copy_half(to.at, lane, row + cell * size);
            return copy_half(to.at + 32, lane, row + cell * size + 2);
        case GGML_TYPE_MXFP4:
            to.at[lane] = row[cell * size];
            return;
        case GGML_TYPE_Q2_K:
            to.at[lane] = super[2 * sub];
            to.at[16 + lane] = super[2 * sub + 1];
            copy_half(to.super, lane, super + 80);
            return copy_half(to.super + 32, lane, super + 82);
        case GGML_TYPE_Q3_K:
            to.at[lane] = read_q3_scale(super + 96, 2 * sub);
            to.at[16 + lane] = read_q3_scale(super + 96, 2 * sub + 1);
            return copy_half(to.super, lane, super + 108);
        case GGML_TYPE_TQ1_0:
        case GGML_TYPE_TQ2_0:
            to.at[lane] = 1;
            return copy_half(to.super, lane, super + (format.type == GGML_TYPE_TQ1_0 ? 52 : 64));
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
            read_k_scale(super + 4, sub, to.at[lane], to.at[16 + lane]);
            copy_half(to.super, lane, super);
            return copy_half(to.super + 32, lane, super + 2);
        case GGML_TYPE_Q6_K:
            to.at[lane] = super[192 + sub * 2];
            to.at[16 + lane] = super[192 + sub * 2 + 1];
            return copy_half(to.super, lane, super + 208);
        case GGML_TYPE_IQ4_XS: {
            const int low = super[4 + sub / 2] >> (4 * (sub % 2)) & 15,
                      high = (super[2] | super[3] << 8) >> (2 * sub) & 3;
            to.at[lane] = static_cast<uint8_t>((low | high << 4) - 32);
            return copy_half(to.super, lane, super);
        }
        default:
            return;
    }
}

// Codes of one row (lane) of a cell: byte 64 * (i / 4) + 4 * lane + i % 4 of a plane holds the code of column i, so
// that four columns are one word.
void pack_codes(Codes codes, const uint8_t* u, int lane, uint8_t* cell) {
    uint32_t words[8];
    std::memcpy(words, u, sizeof(words));
    const auto put = [lane](uint8_t* plane, int j, uint32_t word) { std::memcpy(plane + 64 * j + 4 * lane, &word, 4); };
    if (codes == Codes::u8) {
        for (int j = 0; j < 8; ++j) put(cell, j, words[j]);
        return;
    }
    constexpr uint32_t nibbles = 0x0F0F0F0F, bits = 0x01010101, pairs = 0x03030303;
    // Two bits, from bit `first` on: byte (half, lane, b) holds columns 16 * half + 4 * j + b, j = 0..3.
    const auto put_pairs = [&](uint8_t* plane, int first) {
        for (int half = 0; half < 2; ++half) {
            uint32_t all = 0;
            for (int j = 0; j < 4; ++j) all |= (words[4 * half + j] >> first & pairs) << (2 * j);
            put(plane, half, all);
        }
    };
    // One bit: bit j of byte (lane, b) belongs to column 4 * j + b.
    const auto put_bits = [&](uint8_t* plane, int which) {
        uint32_t all = 0;
        for (int j = 0; j < 8; ++j) all |= (words[j] >> which & bits) << j;
        put(plane, 0, all);
    };
    if (codes == Codes::u2 || codes == Codes::u3) {
        put_pairs(cell, 0);
        if (codes == Codes::u3) put_bits(cell + 128, 2);
        return;
    }
    // Columns i and i + 16 share a byte.
    for (int j = 0; j < 4; ++j) put(cell, j, (words[j] & nibbles) | (words[j + 4] & nibbles) << 4);
    if (codes == Codes::u5) put_bits(cell + 256, 4);
    if (codes == Codes::u6) put_pairs(cell + 256, 4);
}

// 16 rows of one column, then of the next.
void pack_floats(const Format& format, Bytes source, uint8_t* target, int64_t columns, int64_t rows) {
    const size_t size = ggml_type_size(format.type);
    for (int64_t row = 0; row < rows; ++row) {
        const Bytes from = source + static_cast<size_t>(row * columns) * size;
        uint8_t* to = target + static_cast<size_t>(row) * size;
        for (int64_t i = 0; i < columns; ++i, to += group_rows * size) {
            std::memcpy(to, from + static_cast<size_t>(i) * size, size);
        }
    }
}

}  // namespace

const Format* format_of(ggml_type type) {
    for (const Format& format : formats) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

std::vector<std::string> type_names() {
    std::vector<std::string> names;
    for (const Format& format : formats) names.emplace_back(ggml_type_name(format.type));
    return names;
}

bool fits(const Format& format, int64_t columns) {
    const int64_t block = format.has_super() ? cells_per_super * cell_columns : cell_columns;
    return columns > 0 && columns % block == 0;
}

size_t packed_bytes(const Format& format, int64_t columns, int64_t rows) {
    return format.group_bytes(columns) * static_cast<size_t>(groups_of(rows));
}

void pack(const Format& format, const void* source, void* target, int64_t columns, int64_t rows, int64_t begin,
          int64_t end) {
    const int64_t cells = columns / cell_columns;
    const size_t row_bytes = ggml_row_size(format.type, columns);
    for (int64_t group = begin; group < end; ++group) {
        uint8_t* codes = static_cast<uint8_t*>(target) + group * format.group_bytes(columns);
        uint8_t* scales = codes + static_cast<size_t>(cells) * format.code_bytes();
        const int64_t first = group * group_rows, count = std::min<int64_t>(group_rows, rows - first);
        const Bytes from = static_cast<Bytes>(source) + static_cast<size_t>(first) * row_bytes;
        if (count < group_rows) std::memset(codes, 0, format.group_bytes(columns));
        if (format.is_float()) {
            pack_floats(format, from, codes, columns, count);
            continue;
        }
        for (int lane = 0; lane < count; ++lane) {
            const Bytes row = from + static_cast<size_t>(lane) * row_bytes;
            for (int64_t cell = 0; cell < cells; ++cell) {
                uint8_t u[cell_columns];
                read_codes(format.type, row, cell, u);
                pack_codes(format.codes, u, lane, codes + static_cast<size_t>(cell) * format.code_bytes());
                pack_scales(format, row, cell, lane, slots(format, scales, cell));
            }
        }
    }
}

}  // namespace medusa::kernels
