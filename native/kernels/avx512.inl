// Reading weights with AVX-512.
#pragma once

#include "kernels/dispatch.inl"

namespace medusa::kernels {
namespace {

constexpr int words = 8;  // a cell is 8 registers of 16 rows x 4 columns

// Adds `value` wherever the plane at `at` has a bit.
inline void add_bits(const uint8_t* at, char value, __m512i (&w)[words]) {
    const __m512i high = _mm512_loadu_si512(at), more = _mm512_set1_epi8(value);
    for (int j = 0; j < words; ++j) {
        const __mmask64 set = _mm512_test_epi8_mask(high, _mm512_set1_epi8(static_cast<char>(1 << j)));
        w[j] = _mm512_mask_add_epi8(w[j], set, w[j], more);
    }
}

template <Codes codes, bool has_table>
inline void load_codes(const uint8_t* cell, const __m512i table, __m512i (&w)[words]) {
    if constexpr (codes == Codes::u8) {
        for (int j = 0; j < words; ++j) w[j] = _mm512_loadu_si512(cell + 64 * j);
        return;
    }
    if constexpr (codes == Codes::u2 || codes == Codes::u3) {
        const __m512i three = _mm512_set1_epi8(3);
        for (int half = 0; half < 2; ++half) {
            const __m512i packed = _mm512_loadu_si512(cell + 64 * half);
            const __m512i shifted[4] = {packed, _mm512_srli_epi16(packed, 2), _mm512_srli_epi16(packed, 4),
                                        _mm512_srli_epi16(packed, 6)};
            for (int j = 0; j < 4; ++j) w[4 * half + j] = _mm512_and_si512(shifted[j], three);
        }
        if constexpr (codes == Codes::u3) add_bits(cell + 128, 4, w);
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < 4; ++j) {
        const __m512i packed = _mm512_loadu_si512(cell + 64 * j);
        w[j] = _mm512_and_si512(packed, low);
        w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low);
    }
    if constexpr (has_table) {
        for (int j = 0; j < words; ++j) w[j] = _mm512_shuffle_epi8(table, w[j]);
    }
    if constexpr (codes == Codes::u5) add_bits(cell + 256, 16, w);
    if constexpr (codes == Codes::u6) {
        const __m512i bits = _mm512_set1_epi8(0x30);
        for (int half = 0; half < 2; ++half) {
            const __m512i high = _mm512_loadu_si512(cell + 256 + 64 * half);
            const __m512i shifted[4] = {_mm512_slli_epi16(high, 4), _mm512_slli_epi16(high, 2), high,
                                        _mm512_srli_epi16(high, 2)};
            // a | (b & c)
            for (int j = 0; j < 4; ++j) {
                w[4 * half + j] = _mm512_ternarylogic_epi32(w[4 * half + j], shifted[j], bits, 0xF8);
            }
        }
    }
}

inline __m512 halves(const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
inline __m512 unsigned_bytes(const uint8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
inline __m512 signed_bytes(const uint8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}

inline __m512 low_nibbles(const uint8_t* at) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_and_si128(x, _mm_set1_epi8(15))));
}
inline __m512 high_nibbles(const uint8_t* at) {
    const __m128i x = _mm_srli_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)), 4);
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_and_si128(x, _mm_set1_epi8(15))));
}

struct Scale {
    __m512 d, d2, m, m2;
};

// `head`: the super-block's scales (load_head); `at`: the cell's own bytes.
template <Scales scales>
inline Scale load_scale(const Scale& head, const uint8_t* at) {
    Scale out{};
    if constexpr (scales == Scales::half) {
        out.d = halves(at);
    } else if constexpr (scales == Scales::half_min) {
        out.d = halves(at);
        out.m = halves(at + 32);
    } else if constexpr (scales == Scales::exponent) {
        // 2^(e - 128); the smallest two are denormal.
        const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
        const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
        const __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
        out.d = _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, tiny));
    } else if constexpr (scales == Scales::super_min) {
        out.d = _mm512_mul_ps(head.d, unsigned_bytes(at));
        // Negated as a whole: head.m holds -dmin.
        out.m = _mm512_mul_ps(head.m, unsigned_bytes(at + 16));
    } else if constexpr (scales == Scales::super_half_min) {
        out.d = _mm512_mul_ps(head.d, low_nibbles(at));
        out.d2 = _mm512_mul_ps(head.d, low_nibbles(at + 16));
        out.m = _mm512_mul_ps(head.m, high_nibbles(at));
        out.m2 = _mm512_mul_ps(head.m, high_nibbles(at + 16));
    } else if constexpr (scales == Scales::super_half) {
        out.d = _mm512_mul_ps(head.d, signed_bytes(at));
        out.d2 = _mm512_mul_ps(head.d, signed_bytes(at + 16));
    } else {
        out.d = _mm512_mul_ps(head.d, signed_bytes(at));
    }
    return out;
}

// The scales of a super-block.
template <Scales scales>
inline Scale load_head(const uint8_t* at) {
    Scale head{};
    head.d = halves(at);
    if constexpr (has_min(scales)) {
        head.m = _mm512_xor_ps(halves(at + 32), _mm512_set1_ps(-0.0f));
    }
    return head;
}

}  // namespace
}  // namespace medusa::kernels
