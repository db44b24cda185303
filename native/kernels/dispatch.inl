// What the kernels of all instruction sets share. Included inside the anonymous namespace of each file, which then
// defines run(): one copy per file, so that no function built for one instruction set is linked into another's.

template <Scales scales>
constexpr size_t own_bytes = scales == Scales::half_min                                   ? 64
                             : scales == Scales::super_cell || scales == Scales::exponent ? 16
                                                                                          : 32;
template <Scales scales>
constexpr size_t head_bytes = has_min(scales) && scales != Scales::half_min                  ? 64
                              : scales == Scales::super_half || scales == Scales::super_cell ? 32
                                                                                             : 0;

#include "kernels/prefetch.inl"

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
        case GGML_TYPE_Q5_1:
            return run<Codes::u5, Scales::half_min, false>(job);
        case GGML_TYPE_Q8_0:
            return run<Codes::u8, Scales::half, false>(job);
        case GGML_TYPE_IQ4_NL:
            return run<Codes::u4, Scales::half, true>(job);
        case GGML_TYPE_MXFP4:
            return run<Codes::u4, Scales::exponent, true>(job);
        case GGML_TYPE_TQ1_0:
        case GGML_TYPE_TQ2_0:
            return run<Codes::u2, Scales::super_cell, false>(job);
        case GGML_TYPE_Q2_K:
            return run<Codes::u2, Scales::super_half_min, false>(job);
        case GGML_TYPE_Q3_K:
            return run<Codes::u3, Scales::super_half, false>(job);
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
