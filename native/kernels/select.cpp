// Which kernels this processor runs. Built without any instruction-set flags.
#include <cstdlib>
#include <string>

#include "format.h"

#if defined(__x86_64__) || defined(_M_X64)
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
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

bool has_avx512vnni() {
    const Registers r = cpuid(7, 0);
    return has_avx2() && saves(0xE6) && has(r.b, 16) && has(r.b, 17) && has(r.b, 30) && has(r.b, 31) && has(r.c, 11);
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
    if (has_avx512vnni()) all.push_back(&avx512vnni);
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
