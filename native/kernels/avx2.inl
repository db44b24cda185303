// 8 rows in the lanes of a ymm register, up to 4 activation columns at a time. See scalar.cpp for what is computed.
// Included inside the anonymous namespace of each file, after `words`, is_signed (what load_codes() gives: signed
// weights, or unsigned codes and a zero point) and add_products().

constexpr int tile_columns = 4;
constexpr int lanes = 8;  // half a group

inline __m256i load(const uint8_t* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// Adds `value` where the plane at `at` has a bit.
inline void add_bits(const uint8_t* at, char value, __m256i (&w)[words]) {
    const __m256i high = load(at), more = _mm256_set1_epi8(value);
    for (int j = 0; j < words; ++j) {
        const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << j));
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
        w[j] = _mm256_or_si256(w[j], _mm256_and_si256(set, more));
    }
}

// `cell` points at the first byte of these 8 rows.
template <Codes codes, bool has_table>
inline void load_codes(const uint8_t* cell, const __m256i table, __m256i (&w)[words]) {
    if constexpr (codes == Codes::u8) {
        const __m256i middle = _mm256_set1_epi8(static_cast<char>(is_signed<codes, has_table> ? 0x80 : 0));
        for (int j = 0; j < words; ++j) w[j] = _mm256_xor_si256(load(cell + 64 * j), middle);
        return;
    }
    if constexpr (codes == Codes::u2 || codes == Codes::u3) {
        const __m256i three = _mm256_set1_epi8(3);
        for (int half = 0; half < 2; ++half) {
            const __m256i packed = load(cell + 64 * half);
            const __m256i shifted[4] = {packed, _mm256_srli_epi16(packed, 2), _mm256_srli_epi16(packed, 4),
                                        _mm256_srli_epi16(packed, 6)};
            for (int j = 0; j < 4; ++j) w[4 * half + j] = _mm256_and_si256(shifted[j], three);
        }
        if constexpr (codes == Codes::u3) add_bits(cell + 128, 4, w);
        return;
    }
    const __m256i low = _mm256_set1_epi8(15);
    for (int j = 0; j < 4; ++j) {
        const __m256i packed = load(cell + 64 * j);
        w[j] = _mm256_and_si256(packed, low);
        w[j + 4] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
    }
    if constexpr (has_table) {
        for (int j = 0; j < words; ++j) w[j] = _mm256_shuffle_epi8(table, w[j]);
    }
    if constexpr (codes == Codes::u5) add_bits(cell + 256, 16, w);
    if constexpr (codes == Codes::u6) {
        const __m256i bits = _mm256_set1_epi8(0x30);
        for (int half = 0; half < 2; ++half) {
            const __m256i high = load(cell + 256 + 64 * half);
            const __m256i shifted[4] = {_mm256_slli_epi16(high, 4), _mm256_slli_epi16(high, 2), high,
                                        _mm256_srli_epi16(high, 2)};
            for (int j = 0; j < 4; ++j) {
                w[4 * half + j] = _mm256_or_si256(w[4 * half + j], _mm256_and_si256(shifted[j], bits));
            }
        }
    }
}

inline __m128i load_8(const uint8_t* at) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
}
inline __m256 halves(const uint8_t* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline __m256 unsigned_bytes(const uint8_t* at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(at)));
}
inline __m256 signed_bytes(const uint8_t* at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(at)));
}

inline __m256 low_nibbles(const uint8_t* at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(load_8(at), _mm_set1_epi8(15))));
}
inline __m256 high_nibbles(const uint8_t* at) {
    const __m128i x = _mm_and_si128(_mm_srli_epi16(load_8(at), 4), _mm_set1_epi8(15));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x));
}

struct Scale {
    __m256 d, d2, m, m2;
};

// `at`: the cell's scales; `first`: the first of the 8 rows in the group, 0 or 8.
template <Scales scales>
inline Scale load_scale(const Scale& head, const uint8_t* at, int first) {
    Scale out{};
    if constexpr (scales == Scales::half) {
        out.d = halves(at + 2 * first);
    } else if constexpr (scales == Scales::half_min) {
        out.d = halves(at + 2 * first);
        out.m = halves(at + 32 + 2 * first);
    } else if constexpr (scales == Scales::exponent) {
        // 2^(e - 128); the smallest two are denormal.
        const __m256i e = _mm256_cvtepu8_epi32(load_8(at + first));
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
        const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        out.d = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, small));
    } else if constexpr (scales == Scales::super_min) {
        out.d = _mm256_mul_ps(head.d, unsigned_bytes(at + first));
        out.m = _mm256_mul_ps(head.m, unsigned_bytes(at + 16 + first));
    } else if constexpr (scales == Scales::super_half_min) {
        out.d = _mm256_mul_ps(head.d, low_nibbles(at + first));
        out.d2 = _mm256_mul_ps(head.d, low_nibbles(at + 16 + first));
        out.m = _mm256_mul_ps(head.m, high_nibbles(at + first));
        out.m2 = _mm256_mul_ps(head.m, high_nibbles(at + 16 + first));
    } else if constexpr (scales == Scales::super_half) {
        out.d = _mm256_mul_ps(head.d, signed_bytes(at + first));
        out.d2 = _mm256_mul_ps(head.d, signed_bytes(at + 16 + first));
    } else {
        out.d = _mm256_mul_ps(head.d, signed_bytes(at + first));
    }
    return out;
}

// Eight rows times `n` columns.
template <Codes codes, Scales scales, bool has_table, int n>
void multiply_tile(const uint8_t* code, const uint8_t* scale, int64_t cells, int first, __m256i table,
                   const Column* column, const uint8_t* last, float* result, size_t result_stride) {
    constexpr Format sizes{GGML_TYPE_F32, codes, scales, 0, nullptr};
    constexpr bool mins_of_halves = scales == Scales::super_half_min;
    constexpr bool zero_start = is_signed<codes, has_table> || mins_of_halves;
    __m256 acc[n];
    for (int c = 0; c < n; ++c) acc[c] = _mm256_setzero_ps();
    Scale head{};
    for (int64_t cell = 0; cell < cells; ++cell) {
        if constexpr (head_bytes<scales> != 0) {
            if (cell % cells_per_super == 0) {
                head.d = halves(scale + 2 * first);
                if constexpr (has_min(scales)) {
                    head.m = _mm256_xor_ps(halves(scale + 32 + 2 * first), _mm256_set1_ps(-0.0f));
                }
                scale += head_bytes<scales>;
            }
        }
        __m256i w[words];
        load_codes<codes, has_table>(code + 4 * first, table, w);
        const Scale s = load_scale<scales>(head, scale, first);
        for (size_t line = 0; line < sizes.code_bytes(); line += 64) prefetch(code + line, last);
        prefetch(scale, last);
#pragma GCC unroll 4
        for (int c = 0; c < n; ++c) {
            const CellSums& sums = column[c].sums[cell];
            const int8_t* q = column[c].q + cell * cell_columns;
            const __m256 d = _mm256_set1_ps(sums.d);
            const auto start = [&](int half) { return _mm256_set1_epi32(zero_start ? 0 : sums.start[half]); };
            if constexpr (has_halves(scales)) {
                const __m256i low = add_products<codes, has_table, 0, 4>(start(0), w, q);
                acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low), _mm256_mul_ps(s.d, d), acc[c]);
                const __m256i high = add_products<codes, has_table, 4, 8>(start(1), w, q);
                acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_mul_ps(s.d2, d), acc[c]);
            } else {
                const __m256i dot = add_products<codes, has_table, 0, 8>(start(0), w, q);
                acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(s.d, d), acc[c]);
            }
            if constexpr (mins_of_halves) {
                acc[c] = _mm256_fmadd_ps(s.m, _mm256_set1_ps(sums.d * static_cast<float>(sums.start[0])), acc[c]);
                acc[c] = _mm256_fmadd_ps(s.m2, _mm256_set1_ps(sums.d * static_cast<float>(sums.start[1])), acc[c]);
            } else if constexpr (has_min(scales)) {
                acc[c] = _mm256_fmadd_ps(s.m, _mm256_set1_ps(sums.all), acc[c]);
            }
        }
        code += sizes.code_bytes();
        scale += own_bytes<scales>;
    }
    for (int c = 0; c < n; ++c) _mm256_storeu_ps(result + c * result_stride, acc[c]);
}

using TileFunction = void (*)(const uint8_t*, const uint8_t*, int64_t, int, __m256i, const Column*, const uint8_t*,
                              float*, size_t);

template <Codes codes, Scales scales, bool has_table>
void run(const Job& job) {
    static constexpr TileFunction tiles[tile_columns] = {
        multiply_tile<codes, scales, has_table, 1>, multiply_tile<codes, scales, has_table, 2>,
        multiply_tile<codes, scales, has_table, 3>, multiply_tile<codes, scales, has_table, 4>};
    __m256i table = _mm256_setzero_si256();
    if constexpr (has_table) {
        const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(job.format.table));
        const __m128i zero = _mm_set1_epi8(static_cast<char>(is_signed<codes, has_table> ? 0 : 0x80));
        table = _mm256_broadcastsi128_si256(_mm_xor_si128(values, zero));
    }
    const int64_t cells = job.columns / cell_columns;
    const size_t group_bytes = job.format.group_bytes(job.columns);
    const uint8_t* last = job.last_line();
    for (int64_t group = job.begin; group < job.end; ++group) {
        const uint8_t* code = static_cast<const uint8_t*>(job.packed) + group * group_bytes;
        const uint8_t* scale = code + static_cast<size_t>(cells) * job.format.code_bytes();
        for (int column_begin = 0; column_begin < job.n; column_begin += tile_columns) {
            const int n = std::min(tile_columns, job.n - column_begin);
            Column column[tile_columns];
            for (int c = 0; c < n; ++c) {
                const auto* base = static_cast<const char*>(job.activations) + (column_begin + c) * job.stride;
                column[c] = {reinterpret_cast<const int8_t*>(base), column_sums(base, job.columns)};
            }
            for (int first = 0; first < group_rows; first += lanes) {
                float* result = job.result + column_begin * job.result_stride + group * group_rows + first;
                tiles[n - 1](code, scale, cells, first, table, column, last, result, job.result_stride);
            }
        }
    }
}
