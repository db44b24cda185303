// Quantizes activations to 8 bits on x86, four cells at a time; see scalar.cpp for what is computed. Each file has its
// own copy, and defines quantize_four().
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/format.h"
#include "kernels/inline.h"

namespace medusa::kernels {
namespace {

constexpr int cells_together = 4;

class FourCells {
  public:
    alignas(16) float inverse[cells_together];  // times a value: steps of its cell

    // The bits of the largest magnitude in each, where a NaN is larger than any number.
    explicit FourCells(__m128i largest) : largest_(_mm_castsi128_ps(largest)) {
        const __m128 divisor = _mm_max_ps(largest_, _mm_set1_ps(least));
        _mm_store_ps(inverse, _mm_div_ps(_mm_set1_ps(127.0f), divisor));
    }

    // Whether `inverse` holds: for zeros, and from where 127 has a quotient to below infinity.
    bool are_normal() const {
        const __m128 finite = _mm_cmplt_ps(largest_, _mm_set1_ps(INFINITY));
        const __m128 divides =
            _mm_or_ps(_mm_cmpge_ps(largest_, _mm_set1_ps(least)), _mm_cmpeq_ps(largest_, _mm_setzero_ps()));
        return _mm_movemask_ps(_mm_and_ps(finite, divides)) == 0xf;
    }

    // low, high: sums of the values of the cells' halves.
    void store(const Format& format, __m128i low, __m128i high, CellSums* sums) const {
        const __m128 d = _mm_div_ps(largest_, _mm_set1_ps(127.0f));
        const __m128i all = _mm_add_epi32(low, high), minus_zero = _mm_set1_epi32(-format.zero);
        const bool two = has_halves(format.scales);
        const __m128i first = _mm_mullo_epi32(minus_zero, two ? low : all);
        const __m128i second = two ? _mm_mullo_epi32(minus_zero, high) : _mm_setzero_si128();
        __m128 row[] = {d, _mm_mul_ps(d, _mm_cvtepi32_ps(all)), _mm_castsi128_ps(first), _mm_castsi128_ps(second)};
        _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
        for (int i = 0; i < cells_together; ++i) _mm_storeu_ps(&sums[i].d, row[i]);
    }

  private:
    static constexpr float least = 0x1p-119f;

    __m128 largest_;
};

// false: nothing was done, since a cell has values that are not normal.
bool quantize_four(const Format& format, const float* x, int8_t* q, CellSums* sums);

void quantize_one(const Format& format, const float* x, int8_t* q, CellSums& sums) {
    alignas(64) char column[quantized_column_bytes(cell_columns)];
    scalar.quantize(format, x, cell_columns, column);
    std::memcpy(q, column_values(column), cell_columns);
    sums = *column_sums(column, cell_columns);
}

void quantize(const Format& format, const float* x, int64_t columns, void* column) {
    int8_t* q = column_values(column);
    CellSums* sums = column_sums(column, columns);
    const int64_t cells = columns / cell_columns;
    for (int64_t cell = 0; cell < cells; cell += cells_together) {
        // The last four may overlap those before them.
        const int64_t first = std::max(std::min(cell, cells - cells_together), int64_t{0}), at = first * cell_columns;
        if (cells >= cells_together && quantize_four(format, x + at, q + at, sums + first)) continue;
        for (int64_t i = first; i < std::min(first + cells_together, cells); ++i) {
            quantize_one(format, x + i * cell_columns, q + i * cell_columns, sums[i]);
        }
    }
}

}  // namespace
}  // namespace medusa::kernels
