// Used by each instruction set's file, whose `Isa` has a Register, filled(byte) and dot(sum, a, b).
#pragma once

#include <cstring>
#include <utility>

#include "kernels/inline.h"
#include "kernels/peak.h"

namespace medusa::lab {
namespace {

constexpr int chains = 12;  // independent sums: more than latency times throughput of any processor we know
volatile char opaque = 3;

// Makes the compiler compute the value here, in a register.
template <typename Register>
inline void keep(Register& value) {
#if defined(__GNUC__) && defined(__x86_64__)
    __asm__ volatile("" : "+v"(value));
#elif defined(__GNUC__) && defined(__aarch64__)
    __asm__ volatile("" : "+w"(value));
#else
    (void)value;
#endif
}

// Without loops over the sums: compilers keep arrays in registers only if they see all indices early.
template <typename Isa, int... i>
void run_chains(int64_t rounds, std::integer_sequence<int, i...>) {
    using Register = typename Isa::Register;
    const Register a = Isa::filled(opaque), b = Isa::filled(opaque);
    Register sum[chains] = {Isa::filled(static_cast<char>(opaque + i))...};
    for (int64_t round = 0; round < rounds; ++round) ((sum[i] = Isa::dot(sum[i], a, b), keep(sum[i])), ...);
    Register total = a;
    ((total = Isa::dot(total, sum[i], b)), ...);
    char bytes[sizeof(total)];
    std::memcpy(bytes, &total, sizeof(total));
    for (char byte : bytes) opaque = byte;
}

template <typename Isa>
void run(int64_t rounds) {
    run_chains<Isa>(rounds, std::make_integer_sequence<int, chains>{});
}

}  // namespace
}  // namespace medusa::lab
