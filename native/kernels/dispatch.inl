// What the kernels of all instruction sets share. Included inside the anonymous namespace of each file, which then
// defines run(): one copy per file, so that no function built for one instruction set is linked into another's.

template <Scales scales>
constexpr size_t own_bytes = scales == Scales::half_min                                   ? 64
                             : scales == Scales::super_cell || scales == Scales::exponent ? 16
                                                                                          : 32;
template <Scales scales>
constexpr size_t head_bytes = scales == Scales::super_min                                    ? 64
                              : scales == Scales::super_half || scales == Scales::super_cell ? 32
                                                                                             : 0;

// Weights stream from memory in two runs per group, too short for the processor to prefetch well by itself: they are
// asked for early into the second cache and shortly before use into the first.
constexpr size_t far_ahead = 32768, near_ahead = 2048;

// `last`: the last line of this thread's rows; what lies behind it is another thread's.
inline void prefetch(const uint8_t* at, const uint8_t* last, size_t far = far_ahead) {
    const uint8_t *later = std::min(at + far, last), *soon = std::min(at + near_ahead, last);
#if defined(__GNUC__)
    __builtin_prefetch(later, 0, 1);
    __builtin_prefetch(soon, 0, 3);
#elif defined(_M_ARM64)
    __prefetch(later);
    __prefetch(soon);
#else
    _mm_prefetch(reinterpret_cast<const char*>(later), _MM_HINT_T2);
    _mm_prefetch(reinterpret_cast<const char*>(soon), _MM_HINT_T0);
#endif
}

struct Column {
    const int8_t* q;
    const CellSums* sums;
};

struct Job {
    const Format& format;
    const void* packed;
    int64_t columns, begin, end;
    const void* activations;
    size_t stride;
    int n;
    float* result;
    size_t result_stride;

    const uint8_t* last_line() const {
        return static_cast<const uint8_t*>(packed) + static_cast<size_t>(end) * format.group_bytes(columns) - 64;
    }
};

// All groups of the job, for one kind of codes and scales.
template <Codes codes, Scales scales, bool has_table>
void run(const Job& job);

void dispatch(const Job& job) {
    switch (job.format.type) {
        case GGML_TYPE_Q4_0:
            return run<Codes::u4, Scales::half, false>(job);
        case GGML_TYPE_Q4_1:
            return run<Codes::u4, Scales::half_min, false>(job);
        case GGML_TYPE_Q5_0:
            return run<Codes::u5, Scales::half, false>(job);
        case GGML_TYPE_Q8_0:
            return run<Codes::u8, Scales::half, false>(job);
        case GGML_TYPE_IQ4_NL:
            return run<Codes::u4, Scales::half, true>(job);
        case GGML_TYPE_MXFP4:
            return run<Codes::u4, Scales::exponent, true>(job);
        case GGML_TYPE_Q4_K:
            return run<Codes::u4, Scales::super_min, false>(job);
        case GGML_TYPE_Q5_K:
            return run<Codes::u5, Scales::super_min, false>(job);
        case GGML_TYPE_Q6_K:
            return run<Codes::u6, Scales::super_half, false>(job);
        case GGML_TYPE_IQ4_XS:
            return run<Codes::u4, Scales::super_cell, true>(job);
        default:
            return scalar.multiply(job.format, job.packed, job.columns, job.begin, job.end, job.activations, job.stride,
                                   job.n, job.result, job.result_stride);
    }
}

void multiply(const Format& format, const void* packed, int64_t columns, int64_t begin, int64_t end,
              const void* activations, size_t stride, int n, float* result, size_t result_stride) {
    dispatch({format, packed, columns, begin, end, activations, stride, n, result, result_stride});
#if defined(__AVX__)
    // Compilers leave this out behind functions that take vectors as arguments. Without it, code of this thread that is
    // built for plain SSE (the C library, samplers, Python) runs several times slower from here on.
    _mm256_zeroupper();
#endif
}
