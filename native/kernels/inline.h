// What each file of an instruction set begins with.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

// Functions that have to be inlined. Compilers consider functions that only prefetch useless: GCC drops calls to those
// it has not inlined by then, and the prefetches with them (tests/kernels/test_prefetches.py).
#if defined(_MSC_VER) && !defined(__clang__)
#define MEDUSA_INLINE __forceinline
#else
#define MEDUSA_INLINE __attribute__((always_inline)) inline
#endif
