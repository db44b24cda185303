// Compiled with AVX2, FMA and F16C; nothing here may run before select_kernels() has seen them.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/format.h"

namespace medusa::kernels {
namespace {

#include "kernels/dispatch.inl"

constexpr int words = 8;  // a cell is 8 registers of 8 rows x 4 columns

// Without VNNI, products are added up in 16 bits first. Unsigned codes are narrow enough for several of them; the
// others become signed weights, whose products with their signs moved over to the activation fit once.
template <Codes codes, bool has_table>
constexpr bool is_signed = has_table || codes == Codes::u8;
template <Codes codes, bool has_table>
constexpr int products_in_16_bits = is_signed<codes, has_table> ? 1
                                    : codes == Codes::u4        ? 8
                                    : codes == Codes::u5        ? 4
                                                                : 2;

// dot + the products of words begin..end-1 of a cell.
template <Codes codes, bool has_table, int begin, int end>
inline __m256i add_products(__m256i dot, const __m256i (&w)[words], const int8_t* q) {
    constexpr int run = std::min(products_in_16_bits<codes, has_table>, end - begin);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int first = begin; first < end; first += run) {
        __m256i sum = _mm256_setzero_si256();
        for (int j = first; j < first + run; ++j) {
            int32_t four;
            std::memcpy(&four, q + 4 * j, 4);
            const __m256i a = _mm256_set1_epi32(four);
            __m256i product;
            if constexpr (is_signed<codes, has_table>) {
                product = _mm256_maddubs_epi16(_mm256_abs_epi8(w[j]), _mm256_sign_epi8(a, w[j]));
            } else {
                product = _mm256_maddubs_epi16(w[j], a);
            }
            sum = j == first ? product : _mm256_add_epi16(sum, product);
        }
        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(sum, ones));
    }
    return dot;
}

#include "kernels/avx2.inl"

}  // namespace

// Quantizing activations is a small part: the compiler's own vectors do.
const Kernels avx2 = {"avx2", [](const Format& f, const float* x, int64_t n, void* c) { scalar.quantize(f, x, n, c); },
                      multiply, attend_avx2, delta_net_avx2};

}  // namespace medusa::kernels
