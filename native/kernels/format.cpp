#include "kernels/format.h"

#include <cstring>

namespace medusa::kernels {
namespace {

constexpr int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr Format formats[] = {
    {GGML_TYPE_Q4_0, Codes::u4, Scales::half, 8, nullptr},
    {GGML_TYPE_Q4_1, Codes::u4, Scales::half_min, 0, nullptr},
    {GGML_TYPE_Q5_0, Codes::u5, Scales::half, 16, nullptr},
    {GGML_TYPE_Q8_0, Codes::u8, Scales::half, 128, nullptr},
    {GGML_TYPE_IQ4_NL, Codes::u4, Scales::half, 128, iq4_values},
    {GGML_TYPE_MXFP4, Codes::u4, Scales::exponent, 128, mxfp4_values},
    {GGML_TYPE_Q4_K, Codes::u4, Scales::super_min, 0, nullptr},
    {GGML_TYPE_Q5_K, Codes::u5, Scales::super_min, 0, nullptr},
    {GGML_TYPE_Q6_K, Codes::u6, Scales::super_half, 32, nullptr},
    {GGML_TYPE_IQ4_XS, Codes::u4, Scales::super_cell, 128, iq4_values},
};

using Bytes = const uint8_t*;

// The 32 codes of cell `cell` of a row in ggml's layout.
void read_codes(ggml_type type, Bytes row, int64_t cell, uint8_t* u) {
    const Bytes super = row + cell / cells_per_super * static_cast<int64_t>(ggml_type_size(type));
    const int sub = static_cast<int>(cell % cells_per_super);
    const auto nibbles = [&](Bytes qs) {
        for (int i = 0; i < 16; ++i) u[i] = qs[i] & 15, u[i + 16] = qs[i] >> 4;
    };
    switch (type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_IQ4_NL:
            return nibbles(row + cell * 18 + 2);
        case GGML_TYPE_Q4_1:
            return nibbles(row + cell * 20 + 4);
        case GGML_TYPE_MXFP4:
            return nibbles(row + cell * 17 + 1);
        case GGML_TYPE_IQ4_XS:
            return nibbles(super + 8 + sub * 16);
        case GGML_TYPE_Q5_0: {
            const Bytes block = row + cell * 22;
            uint32_t high;
            std::memcpy(&high, block + 2, 4);
            nibbles(block + 6);
            for (int i = 0; i < 32; ++i) u[i] |= (high >> i & 1) << 4;
            return;
        }
        case GGML_TYPE_Q8_0:
            for (int i = 0; i < 32; ++i) u[i] = row[cell * 34 + 2 + i] ^ 0x80;
            return;
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: {
            // Two sub-blocks share 32 bytes: low nibbles, then high nibbles.
            const Bytes qs = super + (type == GGML_TYPE_Q4_K ? 16 : 48) + sub / 2 * 32;
            for (int i = 0; i < 32; ++i) u[i] = sub % 2 ? qs[i] >> 4 : qs[i] & 15;
            if (type == GGML_TYPE_Q5_K) {
                for (int i = 0; i < 32; ++i) u[i] |= (super[16 + i] >> sub & 1) << 4;
            }
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

// Where the scales of one cell go: `at` its own, `super` those of its super-block.
struct ScaleSlots {
    uint8_t* at;
    uint8_t* super;
};

ScaleSlots slots(const Format& format, uint8_t* scales, int64_t cell) {
    const size_t own = format.scale_bytes(cells_per_super) / cells_per_super;  // with its share of the super-block's
    if (!format.has_super()) return {scales + cell * own, nullptr};
    const size_t super_bytes = format.scales == Scales::super_min ? 64 : 32;
    const size_t cell_bytes = format.scales == Scales::super_cell ? 16 : 32;
    uint8_t* super = scales + cell / cells_per_super * format.scale_bytes(cells_per_super);
    return {super + super_bytes + cell % cells_per_super * cell_bytes, super};
}

void copy_half(uint8_t* target, int lane, Bytes source) {
    std::memcpy(target + 2 * lane, source, 2);
}

void pack_scales(const Format& format, Bytes row, int64_t cell, int lane, ScaleSlots to) {
    const Bytes super = row + cell / cells_per_super * static_cast<int64_t>(ggml_type_size(format.type));
    const int sub = static_cast<int>(cell % cells_per_super);
    switch (format.type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_IQ4_NL:
            return copy_half(to.at, lane, row + cell * 18);
        case GGML_TYPE_Q5_0:
            return copy_half(to.at, lane, row + cell * 22);
        case GGML_TYPE_Q8_0:
            return copy_half(to.at, lane, row + cell * 34);
        case GGML_TYPE_Q4_1:
            copy_half(to.at, lane, row + cell * 20);
            return copy_half(to.at + 32, lane, row + cell * 20 + 2);
        case GGML_TYPE_MXFP4:
            to.at[lane] = row[cell * 17];
            return;
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

// Codes of one row (lane) of a cell: byte 64 * (i / 4) + 4 * lane + i % 4 of a plane holds what belongs to column i, so
// that four columns are one word.
void pack_codes(Codes codes, const uint8_t* u, int lane, uint8_t* cell) {
    uint32_t words[8];
    std::memcpy(words, u, sizeof(words));
    const auto put = [lane](uint8_t* plane, int j, uint32_t word) { std::memcpy(plane + 64 * j + 4 * lane, &word, 4); };
    if (codes == Codes::u8) {
        for (int j = 0; j < 8; ++j) put(cell, j, words[j]);
        return;
    }
    // Columns i and i + 16 share a byte.
    constexpr uint32_t nibbles = 0x0F0F0F0F, bits = 0x01010101, pairs = 0x03030303;
    for (int j = 0; j < 4; ++j) put(cell, j, (words[j] & nibbles) | (words[j + 4] & nibbles) << 4);
    // Bit j of the high plane's byte (lane, b) belongs to column 4 * j + b.
    if (codes == Codes::u5) {
        uint32_t high = 0;
        for (int j = 0; j < 8; ++j) high |= (words[j] >> 4 & bits) << j;
        put(cell + 256, 0, high);
    }
    // Two bits: byte (half, lane, b) holds columns 16 * half + 4 * j + b, j = 0..3.
    if (codes == Codes::u6) {
        for (int half = 0; half < 2; ++half) {
            uint32_t high = 0;
            for (int j = 0; j < 4; ++j) high |= (words[4 * half + j] >> 4 & pairs) << (2 * j);
            put(cell + 256, half, high);
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

bool fits(const Format& format, int64_t columns, int64_t rows) {
    const int64_t block = format.has_super() ? cells_per_super * cell_columns : cell_columns;
    return columns > 0 && rows > 0 && columns % block == 0 && rows % group_rows == 0;
}

size_t packed_bytes(const Format& format, int64_t columns, int64_t rows) {
    return format.group_bytes(columns) * static_cast<size_t>(rows / group_rows);
}

void pack(const Format& format, const void* source, void* target, int64_t columns, int64_t begin, int64_t end) {
    const int64_t cells = columns / cell_columns;
    const size_t row_bytes = ggml_row_size(format.type, columns);
    for (int64_t group = begin; group < end; ++group) {
        uint8_t* codes = static_cast<uint8_t*>(target) + group * format.group_bytes(columns);
        uint8_t* scales = codes + static_cast<size_t>(cells) * format.code_bytes();
        for (int lane = 0; lane < group_rows; ++lane) {
            const Bytes row = static_cast<Bytes>(source) + (group * group_rows + lane) * row_bytes;
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
