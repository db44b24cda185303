#include "base/quantize.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>

#include "base/common.h"

namespace medusa {
namespace {

// ggml spells its names "q4_0", but "q4_K".
bool same_name(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

ggml_type quantized_type(const std::string& name, int64_t columns) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        const char* type_name = ggml_type_name(type);
        if (!type_name || !same_name(name, type_name) || ggml_blck_size(type) <= 0) continue;
        const bool is_float = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
        if (!is_float && (!ggml_is_quantized(type) || !ggml_get_type_traits(type)->to_float)) break;
        if (ggml_quantize_requires_imatrix(type))
            throw Error("type " + name + " needs an importance matrix: choose another");
        if (columns < 1 || columns % ggml_blck_size(type) != 0) {
            throw Error("rows of " + std::to_string(columns) + " values do not fit " + name + ", whose blocks hold " +
                        std::to_string(ggml_blck_size(type)) + ": choose f16 or q8_0");
        }
        return type;
    }
    throw Error("unknown type '" + name + "': f32, f16, bf16, q8_0, q4_0, q4_k, ...");
}

}  // namespace

void to_floats(ggml_type type, const void* data, std::span<float> out) {
    if (type == GGML_TYPE_F32) {
        std::memcpy(out.data(), data, out.size_bytes());
    } else {
        ggml_get_type_traits(type)->to_float(data, out.data(), static_cast<int64_t>(out.size()));
    }
}

std::vector<uint8_t> quantize_rows(const std::string& name, std::span<const float> values, int64_t columns) {
    const ggml_type type = quantized_type(name, columns);
    const auto rows = static_cast<int64_t>(values.size()) / columns;
    if (rows * columns != static_cast<int64_t>(values.size()))
        throw Error("quantize_rows: the last row is not complete");
    std::vector<uint8_t> out(static_cast<size_t>(rows) * ggml_row_size(type, columns));
    if (rows > 0) ggml_quantize_chunk(type, values.data(), out.data(), 0, rows, columns, nullptr);
    return out;
}

}  // namespace medusa
