// The few ggml functions that the kernels call, so that the lab links without libggml.
#include <bit>
#include <cmath>
#include <cstdint>

#include "ggml.h"

namespace {

struct Type {
    ggml_type type;
    const char* name;
    int block;  // values
    size_t bytes;
};

constexpr Type types[] = {
    {GGML_TYPE_Q4_0, "q4_0", 32, 18},     {GGML_TYPE_Q4_1, "q4_1", 32, 20},    {GGML_TYPE_Q5_0, "q5_0", 32, 22},
    {GGML_TYPE_Q8_0, "q8_0", 32, 34},     {GGML_TYPE_Q5_1, "q5_1", 32, 24},    {GGML_TYPE_Q3_K, "q3_K", 256, 110},
    {GGML_TYPE_TQ1_0, "tq1_0", 256, 54},  {GGML_TYPE_TQ2_0, "tq2_0", 256, 66}, {GGML_TYPE_F16, "f16", 1, 2},
    {GGML_TYPE_BF16, "bf16", 1, 2},       {GGML_TYPE_F32, "f32", 1, 4},        {GGML_TYPE_Q2_K, "q2_K", 256, 84},
    {GGML_TYPE_IQ4_NL, "iq4_nl", 32, 18}, {GGML_TYPE_MXFP4, "mxfp4", 32, 17},  {GGML_TYPE_Q4_K, "q4_K", 256, 144},
    {GGML_TYPE_Q5_K, "q5_K", 256, 176},   {GGML_TYPE_Q6_K, "q6_K", 256, 210},  {GGML_TYPE_IQ4_XS, "iq4_xs", 256, 136}};

const Type* find(ggml_type type) {
    for (const Type& one : types) {
        if (one.type == type) return &one;
    }
    return nullptr;
}

}  // namespace

extern "C" {

const char* ggml_type_name(ggml_type type) {
    const Type* found = find(type);
    return found ? found->name : "unknown";
}

size_t ggml_type_size(ggml_type type) {
    const Type* found = find(type);
    return found ? found->bytes : 0;
}

int64_t ggml_blck_size(ggml_type type) {
    const Type* found = find(type);
    return found ? found->block : 1;
}

size_t ggml_row_size(ggml_type type, int64_t columns) {
    return ggml_type_size(type) * static_cast<size_t>(columns / ggml_blck_size(type));
}

float ggml_fp16_to_fp32(ggml_fp16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31,
                   fraction = half & 1023;
    if (exponent == 0) return std::copysign(std::ldexp(static_cast<float>(fraction), -24), sign ? -1.0f : 1.0f);
    const uint32_t wide = exponent == 31 ? 255 : exponent - 15 + 127;
    return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}
}
