// Products per second that an instruction set can do in registers, without memory: of bytes, as the matrices' kernels
// need them, and of floats, as attention does.
#pragma once

#include <cstdint>

namespace medusa::lab {

struct Peak {
    int64_t per_round;  // multiplications and additions
    void (*run)(int64_t rounds);
};

#if defined(__x86_64__) || defined(_M_X64)
extern const Peak peak_avx2;
extern const Peak peak_avxvnni;
extern const Peak peak_avx512vnni;
#if MEDUSA_HAS_AMX
extern const Peak peak_amx_int8;
#endif
extern const Peak peak_floats_avx2;
extern const Peak peak_floats_avx512;
#elif defined(__aarch64__) || defined(_M_ARM64)
extern const Peak peak_neon_dotprod;
extern const Peak peak_neon_i8mm;
extern const Peak peak_floats_neon;
#endif

}  // namespace medusa::lab
