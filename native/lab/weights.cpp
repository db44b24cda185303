#include <cstring>

#include "lab/lab.h"

namespace medusa::lab {
namespace {

// Where a block of the type keeps its f16 scales.
std::vector<size_t> half_offsets(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
            return {0, 2};
        case GGML_TYPE_Q2_K:
            return {80, 82};
        case GGML_TYPE_Q3_K:
            return {108};
        case GGML_TYPE_Q6_K:
            return {208};
        case GGML_TYPE_TQ1_0:
            return {52};
        case GGML_TYPE_TQ2_0:
            return {64};
        case GGML_TYPE_MXFP4:
        case GGML_TYPE_BF16:
        case GGML_TYPE_F32:
            return {};
        default:
            return {0};
    }
}

// Of either sign, 2^-10 to 1.
uint16_t moderate_half(std::mt19937& random) {
    const uint32_t bits = random();
    return static_cast<uint16_t>((bits & 0x83FF) | (5 + (bits >> 16) % 10) << 10);
}

// The upper half of a float of either sign, 2^-10 to 1.
uint16_t moderate_top(std::mt19937& random) {
    const uint32_t bits = random();
    return static_cast<uint16_t>((bits & 0x807F) | (117 + (bits >> 16) % 10) << 7);
}

}  // namespace

std::vector<uint8_t> random_weights(const kernels::Format& format, int64_t rows, int64_t columns, bool sane,
                                    std::mt19937& random) {
    std::vector<uint8_t> bytes(ggml_row_size(format.type, columns) * static_cast<size_t>(rows));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 8);
    const auto offsets = half_offsets(format.type);
    for (size_t block = 0; block < bytes.size(); block += ggml_type_size(format.type)) {
        const bool moderate = sane || random() % 4 != 0;
        for (size_t offset : offsets) {
            const uint16_t half = moderate_half(random);
            if (moderate) std::memcpy(&bytes[block + offset], &half, sizeof(half));
        }
        if (moderate && (format.codes == kernels::Codes::bf16 || format.codes == kernels::Codes::f32)) {
            const uint16_t top = moderate_top(random);
            std::memcpy(&bytes[block + ggml_type_size(format.type) - 2], &top, sizeof(top));
        }
        // Exponents; those below 2 make denormal scales.
        if (format.type == GGML_TYPE_MXFP4)
            bytes[block] = static_cast<uint8_t>(moderate ? 110 + random() % 30 : random() % 4);
    }
    return bytes;
}

}  // namespace medusa::lab
