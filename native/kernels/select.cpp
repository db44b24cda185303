// Which kernels this processor can run. Built without any instruction-set flags.
#include <cstdlib>
#include <string>

#include "kernels/format.h"

#if defined(__x86_64__) || defined(_M_X64)
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#if MEDUSA_HAS_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) || defined(_M_ARM64)
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif
#endif

namespace medusa::kernels {
namespace {

#if defined(__x86_64__) || defined(_M_X64)
struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned sub) {
    Registers r;
#if defined(_MSC_VER)
    int out[4];
    __cpuidex(out, static_cast<int>(leaf), static_cast<int>(sub));
    r = {static_cast<unsigned>(out[0]), static_cast<unsigned>(out[1]), static_cast<unsigned>(out[2]),
         static_cast<unsigned>(out[3])};
#else
    __get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d);
#endif
    return r;
}

unsigned long long xgetbv() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<unsigned long long>(high) << 32 | low;
#endif
}

bool has(unsigned value, int bit) {
    return value >> bit & 1;
}

// The operating system saves the registers of `mask` (bits of XCR0).
bool saves(unsigned long long mask) {
    return has(cpuid(1, 0).c, 27) && (xgetbv() & mask) == mask;
}

bool has_avx2() {
    return cpuid(0, 0).a >= 7 && saves(0x6) && has(cpuid(1, 0).c, 12) && has(cpuid(1, 0).c, 29) &&
           has(cpuid(7, 0).b, 5);
}

bool has_avxvnni() {
    return has_avx2() && cpuid(7, 0).a >= 1 && has(cpuid(7, 1).a, 4);
}

bool has_avx512vnni() {
    const Registers r = cpuid(7, 0);
    return has_avx2() && saves(0xE6) && has(r.b, 16) && has(r.b, 17) && has(r.b, 30) && has(r.b, 31) && has(r.c, 11);
}

#if MEDUSA_HAS_AMX
// Linux saves a process's tiles only after it has asked for that, and refuses if a signal stack is too small.
bool has_amx_int8() {
    constexpr long request_permission = 0x1023, tile_data = 18;
    const Registers r = cpuid(7, 0);
    static const bool has_all = has_avx512vnni() && saves(0x60000) && has(r.d, 24) && has(r.d, 25) &&
                                syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return has_all;
}
#endif
#elif defined(__aarch64__) || defined(_M_ARM64)
#if defined(__APPLE__)
bool has(const char* feature) {
    int value = 0;
    size_t size = sizeof(value);
    return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

// What nobody reports is assumed absent.
bool has_dotprod() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
    return has("hw.optional.arm.FEAT_DotProd");
#elif defined(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE)
    return IsProcessorFeaturePresent(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE);
#else
    return false;
#endif
}

bool has_i8mm() {
#if defined(__linux__)
    return has_dotprod() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
#elif defined(__APPLE__)
    return has_dotprod() && has("hw.optional.arm.FEAT_I8MM");
#elif defined(PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE)
    return has_dotprod() && IsProcessorFeaturePresent(PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE);
#else
    return false;
#endif
}
#endif

}  // namespace

bool has_avx512fp16() {
#if defined(__x86_64__) || defined(_M_X64)
    return has_avx512vnni() && has(cpuid(7, 0).d, 23);
#else
    return false;
#endif
}

std::vector<const Kernels*> supported_kernels() {
    std::vector<const Kernels*> all{&scalar};
#if defined(__x86_64__) || defined(_M_X64)
    if (has_avx2()) all.push_back(&avx2);
    if (has_avxvnni()) all.push_back(&avxvnni);
    if (has_avx512vnni()) all.push_back(&avx512vnni);
#if MEDUSA_HAS_AMX
    if (has_amx_int8()) all.push_back(&amx_int8);
#endif
#elif defined(__aarch64__) || defined(_M_ARM64)
    if (has_dotprod()) all.push_back(&neon_dotprod);
    if (has_i8mm()) all.push_back(&neon_i8mm);
#endif
    return all;
}

const Kernels* select_kernels() {
    const char* wanted = std::getenv("MEDUSA_ISA");
    const auto all = supported_kernels();
    // The scalar kernels are a reference, slower than stock code.
    if (!wanted || !*wanted) return all.size() > 1 ? all.back() : nullptr;
    for (const Kernels* one : all) {
        if (std::string(wanted) == one->name) return one;
    }
    return nullptr;
}

}  // namespace medusa::kernels
