// Included inside the anonymous namespace of each file that reads packed weights.

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
