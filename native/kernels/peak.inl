// Included inside the anonymous namespace of each file, after Register, filled(byte) and dot(sum, a, b).

constexpr int chains = 12;  // independent sums: more than latency times throughput of any processor we know

volatile char opaque = 3;

// Makes a compiler compute the value here, in a register.
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
template <int... i>
void run_chains(int64_t rounds, std::integer_sequence<int, i...>) {
    const Register a = filled(opaque), b = filled(opaque);
    Register sum[chains] = {filled(static_cast<char>(opaque + i))...};
    for (int64_t round = 0; round < rounds; ++round) ((sum[i] = dot(sum[i], a, b), keep(sum[i])), ...);
    Register total = a;
    ((total = dot(total, sum[i], b)), ...);
    char bytes[sizeof(total)];
    std::memcpy(bytes, &total, sizeof(total));
    for (char byte : bytes) opaque = byte;
}

void run(int64_t rounds) {
    run_chains(rounds, std::make_integer_sequence<int, chains>{});
}
