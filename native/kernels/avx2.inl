// 16 rows in the lanes of two ymm registers, up to 4 activation columns at a time: their 8 sums of integers fill half
// of the registers, and each word of weights and activations is loaded once for 4 and 2 products. See scalar.cpp for
// what is computed. Included inside the anonymous namespace of each file, after dispatch.inl, is_signed (what words
// hold: signed weights, or unsigned codes and a zero point) and products_in_16_bits; the file then defines
// add_products().

constexpr int words = 8;  // of a cell: 16 rows x 4 columns each
constexpr int parts = 2;  // registers per word
constexpr int lanes = 8;  // rows in a part
constexpr int tile_columns = 4;
// With this many columns, weights are unpacked once for all tiles, a block of cells at a time; measured.
int unpack_from(const Format& format) {
    return format.codes == Codes::u5 || format.codes == Codes::u6 ? 5 : 9;
}
constexpr int64_t step_cells = 32;
// Columns, and cells times columns, whose activations stay in the second-level cache for all rows.
constexpr int most_columns = 256;
constexpr int64_t most_cells = 8192;

// What a tile needs from one cell of n activation columns.
template <int n>
struct Activations {
    int32_t q[words][n];  // four values each
    float d[n], all[n];
    int32_t start[2][n];
};

struct alignas(64) UnpackedCell {
    uint8_t codes[words * parts * 32];
    float scales[2][group_rows];  // d, then d2 or m
};

struct Tile {
    const uint8_t *code, *scale, *last;
    const UnpackedCell* unpacked;
    bool ahead;  // whether weights are prefetched
    size_t far;  // how many bytes ahead
    int64_t cells;
    const void* activations;
    __m256i table;
    bool resume;  // the result holds the sum over earlier cells
    float* result;
    size_t result_stride;
};

// The order of words in a sum: the two that share bytes come in turn.
template <int begin, int end>
constexpr int word_at(int i) {
    return end - begin == words ? i / 2 + 4 * (i % 2) : i;
}

inline __m256i load(const uint8_t* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

MEDUSA_INLINE void prefetch_line(const uint8_t* later, const uint8_t* soon) {
    _mm_prefetch(reinterpret_cast<const char*>(later), _MM_HINT_T2);
    _mm_prefetch(reinterpret_cast<const char*>(soon), _MM_HINT_T0);
}

// Word j of 8 rows; `cell` points at their first byte.
template <Codes codes, bool has_table>
inline __m256i load_word(const uint8_t* cell, int j, const __m256i table) {
    if constexpr (codes == Codes::u8) {
        const __m256i w = load(cell + 64 * j);
        return is_signed<codes, has_table> ? _mm256_xor_si256(w, _mm256_set1_epi8(static_cast<char>(0x80))) : w;
    }
    if constexpr (codes == Codes::u2 || codes == Codes::u3) {
        const __m256i pairs = _mm256_srli_epi16(load(cell + 64 * (j / 4)), 2 * (j % 4));
        const __m256i w = _mm256_and_si256(pairs, _mm256_set1_epi8(3));
        if constexpr (codes == Codes::u2) return w;
        const __m256i high = load(cell + 128);
        const __m256i bit = j < 2 ? _mm256_slli_epi16(high, 2 - j) : _mm256_srli_epi16(high, j - 2);
        return _mm256_or_si256(w, _mm256_and_si256(bit, _mm256_set1_epi8(4)));
    }
    const __m256i packed = load(cell + 64 * (j % 4));
    __m256i w = _mm256_and_si256(j < 4 ? packed : _mm256_srli_epi16(packed, 4), _mm256_set1_epi8(15));
    if constexpr (has_table) w = _mm256_shuffle_epi8(table, w);
    if constexpr (codes == Codes::u5) {
        const __m256i high = load(cell + 256);
        const __m256i bit = j < 4 ? _mm256_slli_epi16(high, 4 - j) : _mm256_srli_epi16(high, j - 4);
        w = _mm256_or_si256(w, _mm256_and_si256(bit, _mm256_set1_epi8(16)));
    }
    if constexpr (codes == Codes::u6) {
        const __m256i high = load(cell + 256 + 64 * (j / 4));
        const int shift = 2 * (j % 4) - 4;
        const __m256i bits = shift < 0 ? _mm256_slli_epi16(high, -shift) : _mm256_srli_epi16(high, shift);
        w = _mm256_or_si256(w, _mm256_and_si256(bits, _mm256_set1_epi8(0x30)));
    }
    return w;
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

struct Scale {
    __m256 d, other;  // d2 or m
};

// `at`: the cell's scales; `first`: the first of the 8 rows in the group, 0 or 8.
template <Scales scales>
inline Scale load_scale(const Scale& head, const uint8_t* at, int first) {
    Scale out{};
    if constexpr (scales == Scales::half) {
        out.d = halves(at + 2 * first);
    } else if constexpr (scales == Scales::half_min) {
        out.d = halves(at + 2 * first);
        out.other = halves(at + 32 + 2 * first);
    } else if constexpr (scales == Scales::exponent) {
        // 2^(e - 128); the smallest two are denormal.
        const __m256i e = _mm256_cvtepu8_epi32(load_8(at + first));
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
        const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        out.d = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, small));
    } else if constexpr (scales == Scales::super_min) {
        // Negated as a whole: head.other holds -dmin.
        out.d = _mm256_mul_ps(head.d, unsigned_bytes(at + first));
        out.other = _mm256_mul_ps(head.other, unsigned_bytes(at + 16 + first));
    } else if constexpr (scales == Scales::super_half) {
        out.d = _mm256_mul_ps(head.d, signed_bytes(at + first));
        out.other = _mm256_mul_ps(head.d, signed_bytes(at + 16 + first));
    } else {
        out.d = _mm256_mul_ps(head.d, signed_bytes(at + first));
    }
    return out;
}

// A group's weights, cell by cell, unpacked by an earlier pass.
template <int products_, bool is_signed_, bool two_scales_, bool has_min_>
class Unpacked {
  public:
    static constexpr int products = products_;
    static constexpr bool has_sign = is_signed_, two_scales = two_scales_, has_min = has_min_;

    explicit Unpacked(const Tile& tile) : cell_(tile.unpacked) {}
    void begin_cell(int64_t) {}
    void end_cell() { ++cell_; }
    __m256i word(int j, int part) const { return load(cell_->codes + 64 * j + 32 * part); }
    Scale scale(int part) const {
        Scale out{};
        out.d = _mm256_load_ps(cell_->scales[0] + lanes * part);
        if constexpr (two_scales || has_min) out.other = _mm256_load_ps(cell_->scales[1] + lanes * part);
        return out;
    }

  private:
    const UnpackedCell* cell_;
};

// A group's weights, cell by cell, unpacked on the way.
template <Codes codes, Scales scales, bool has_table>
class Packed {
  public:
    static constexpr int products = products_in_16_bits<codes, scales, has_table>;
    static constexpr bool has_sign = is_signed<codes, has_table>, two_scales = scales == Scales::super_half,
                          has_min = kernels::has_min(scales);
    using WhenUnpacked = Unpacked<products, has_sign, two_scales, has_min>;

    explicit Packed(const Tile& tile)
        : code_(tile.code),
          scale_(tile.scale),
          last_(tile.last),
          ahead_(tile.ahead),
          far_(tile.far),
          table_(tile.table) {}

    MEDUSA_INLINE void begin_cell(int64_t cell) {
        if constexpr (head_bytes(scales) != 0) {
            if (cell % cells_per_super == 0) {
                for (int part = 0; part < parts; ++part) head_[part] = load_head(part);
                scale_ += head_bytes(scales);
            }
        }
        if (!ahead_) return;
        const uint8_t* end = last_ - (sizes.code_bytes() - 64);
        const uint8_t *later = std::min(code_ + far_, end), *soon = std::min(code_ + near_ahead, end);
        for (size_t line = 0; line < sizes.code_bytes(); line += 64) prefetch_line(later + line, soon + line);
        prefetch_line(std::min(scale_ + far_, last_), std::min(scale_ + near_ahead, last_));
    }
    void end_cell() {
        code_ += sizes.code_bytes();
        scale_ += own_bytes(scales);
    }
    __m256i word(int j, int part) const { return load_word<codes, has_table>(code_ + 32 * part, j, table_); }
    Scale scale(int part) const { return load_scale<scales>(head_[part], scale_, lanes * part); }

  private:
    static constexpr Format sizes{GGML_TYPE_F32, codes, scales, 0, nullptr};

    Scale load_head(int part) const {
        Scale head{};
        head.d = halves(scale_ + 16 * part);
        if constexpr (has_min && scales != Scales::half_min) {
            head.other = _mm256_xor_ps(halves(scale_ + 32 + 16 * part), _mm256_set1_ps(-0.0f));
        }
        return head;
    }

    const uint8_t *code_, *scale_, *last_;
    bool ahead_;
    size_t far_;
    __m256i table_;
    Scale head_[parts]{};
};

// dot = the products of words begin..end-1 of a cell, plus what the codes' zero point contributes.
template <int begin, int end, int n, class Weights>
inline void add_products(const Weights& weights, const Activations<n>& a, __m256i (&dot)[n][parts]);

// acc + dot * d
template <int n>
inline void add_scaled(const __m256i (&dot)[n][parts], __m256 d0, __m256 d1, const float (&d)[n],
                       __m256 (&acc)[n][parts]) {
#pragma GCC unroll 4
    for (int c = 0; c < n; ++c) {
        const __m256 by = _mm256_set1_ps(d[c]);
        acc[c][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[c][0]), _mm256_mul_ps(d0, by), acc[c][0]);
        acc[c][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[c][1]), _mm256_mul_ps(d1, by), acc[c][1]);
    }
}

// A group's rows times n columns, some cells.
template <class Weights, int n>
void multiply_tile(const Tile& tile) {
    Weights weights(tile);
    const auto* a = static_cast<const Activations<n>*>(tile.activations);
    __m256 acc[n][parts];
#pragma GCC unroll 8
    for (int i = 0; i < n * parts; ++i) {
        const float* sum = tile.result + i / parts * tile.result_stride + i % parts * lanes;
        acc[i / parts][i % parts] = tile.resume ? _mm256_loadu_ps(sum) : _mm256_setzero_ps();
    }
    for (int64_t cell = 0; cell < tile.cells; ++cell, ++a) {
        weights.begin_cell(cell);
        __m256i dot[n][parts];
        if constexpr (Weights::two_scales) {
            add_products<0, words / 2>(weights, *a, dot);
            add_scaled(dot, weights.scale(0).d, weights.scale(1).d, a->d, acc);
            add_products<words / 2, words>(weights, *a, dot);
            add_scaled(dot, weights.scale(0).other, weights.scale(1).other, a->d, acc);
        } else {
            add_products<0, words>(weights, *a, dot);
            add_scaled(dot, weights.scale(0).d, weights.scale(1).d, a->d, acc);
        }
        if constexpr (Weights::has_min) {
            const __m256 m0 = weights.scale(0).other, m1 = weights.scale(1).other;
#pragma GCC unroll 4
            for (int c = 0; c < n; ++c) {
                const __m256 all = _mm256_set1_ps(a->all[c]);
                acc[c][0] = _mm256_fmadd_ps(m0, all, acc[c][0]);
                acc[c][1] = _mm256_fmadd_ps(m1, all, acc[c][1]);
            }
        }
        weights.end_cell();
    }
#pragma GCC unroll 8
    for (int i = 0; i < n * parts; ++i) {
        float* sum = tile.result + i / parts * tile.result_stride + i % parts * lanes;
        _mm256_storeu_ps(sum, acc[i / parts][i % parts]);
    }
}

template <class Weights>
void unpack(const Tile& tile, UnpackedCell* to) {
    Weights weights(tile);
    for (int64_t cell = 0; cell < tile.cells; ++cell, ++to) {
        weights.begin_cell(cell);
        for (int part = 0; part < parts; ++part) {
#pragma GCC unroll 8
            for (int j = 0; j < words; ++j) {
                _mm256_store_si256(reinterpret_cast<__m256i*>(to->codes + 64 * j + 32 * part), weights.word(j, part));
            }
            const Scale s = weights.scale(part);
            _mm256_store_ps(to->scales[0] + lanes * part, s.d);
            if constexpr (Weights::two_scales || Weights::has_min) {
                _mm256_store_ps(to->scales[1] + lanes * part, s.other);
            }
        }
        weights.end_cell();
    }
}

// Cells begin..begin+cells-1 of columns first..first+n-1, as a tile reads them.
template <int n>
void arrange(const Job& job, int first, int64_t begin, int64_t cells, void* target) {
    auto* to = static_cast<Activations<n>*>(target);
    for (int c = 0; c < n; ++c) {
        const char* base = job.column(first + c);
        const char* q = base + begin * cell_columns;
        const CellSums* sums = column_sums(base, job.columns) + begin;
        for (int64_t cell = 0; cell < cells; ++cell, q += cell_columns) {
            for (int j = 0; j < words; ++j) std::memcpy(&to[cell].q[j][c], q + 4 * j, 4);
            to[cell].d[c] = sums[cell].d;
            to[cell].all[c] = sums[cell].all;
            to[cell].start[0][c] = sums[cell].start[0];
            to[cell].start[1][c] = sums[cell].start[1];
        }
    }
}

// Memory of one thread, kept between calls.
struct Scratch {
    struct alignas(64) Line {
        char bytes[64];
    };
    std::vector<Line> activations;
    std::vector<UnpackedCell> weights;
};

Scratch& scratch_of_thread() {
    thread_local Scratch scratch;
    return scratch;
}

// For one kind of weights; by columns of a tile - 1.
struct Functions {
    void (*packed[tile_columns])(const Tile&);
    void (*unpacked[tile_columns])(const Tile&);
    void (*unpack)(const Tile&, UnpackedCell*);
};

// Columns first..first+n-1.
class Columns {
  public:
    Columns(const Job& job, const Functions& functions, __m256i table, int first, int n)
        : job_(job),
          functions_(functions),
          first_(first),
          n_(n),
          tiles_((n + tile_columns - 1) / tile_columns),
          unpacks_(n >= unpack_from(job.format)),
          cells_(job.columns / cell_columns),
          block_(unpacks_ ? std::max(most_cells / n / step_cells, int64_t{1}) * step_cells : cells_),
          step_(tiles_ > 1 ? step_cells : cells_) {
        tile_.last = job.last_line();
        tile_.table = table;
        tile_.far = far_ahead_in(job.format.group_bytes(job.columns));
        tile_.result_stride = job.result_stride;
        Scratch& scratch = scratch_of_thread();
        const auto cells_at_once = static_cast<size_t>(std::min(block_, cells_));
        scratch.activations.resize((cells_at_once * static_cast<size_t>(n) * sizeof(Activations<1>) + 63) / 64);
        activations_ = reinterpret_cast<char*>(scratch.activations.data());
        if (unpacks_) scratch.weights.resize(step_cells);
        weights_ = scratch.weights.data();
    }

    void run() {
        for (int64_t begin = 0; begin < cells_; begin += block_) {
            const int64_t end = std::min(begin + block_, cells_);
            arrange_block(begin, end);
            for (int64_t group = job_.begin; group < job_.end; ++group) {
                for (int64_t at = begin; at < end; at += step_) {
                    multiply_step(group, begin, end, at);
                }
            }
        }
    }

  private:
    int column_of(int tile) const { return n_ * tile / tiles_; }
    int width_of(int tile) const { return column_of(tile + 1) - column_of(tile); }
    // A tile's activations in a block of this many cells.
    char* activations_of(int tile, int64_t cells) const {
        return activations_ + static_cast<size_t>(cells * column_of(tile)) * sizeof(Activations<1>);
    }

    void arrange_block(int64_t begin, int64_t end) const {
        constexpr void (*by_width[])(const Job&, int, int64_t, int64_t, void*) = {arrange<1>, arrange<2>, arrange<3>,
                                                                                  arrange<4>};
        for (int t = 0; t < tiles_; ++t) {
            by_width[width_of(t) - 1](job_, first_ + column_of(t), begin, end - begin, activations_of(t, end - begin));
        }
    }

    // Cells at..at+step_-1 of a group, in the block begin..end-1.
    void multiply_step(int64_t group, int64_t begin, int64_t end, int64_t at) {
        const Format& format = job_.format;
        const uint8_t* code = job_.group(group);
        tile_.code = code + static_cast<size_t>(at) * format.code_bytes();
        tile_.scale = code + static_cast<size_t>(cells_) * format.code_bytes() + format.scale_bytes(at);
        tile_.cells = std::min(step_, end - at);
        tile_.resume = at > 0;
        tile_.ahead = true;
        if (unpacks_) {
            functions_.unpack(tile_, weights_);
            tile_.unpacked = weights_;
        }
        for (int t = 0; t < tiles_; ++t) {
            const int width = width_of(t);
            tile_.activations =
                activations_of(t, end - begin) + static_cast<size_t>((at - begin) * width) * sizeof(Activations<1>);
            tile_.result =
                job_.result + static_cast<size_t>(first_ + column_of(t)) * job_.result_stride + group * group_rows;
            (unpacks_ ? functions_.unpacked : functions_.packed)[width - 1](tile_);
            tile_.ahead = false;
        }
    }

    const Job& job_;
    const Functions& functions_;
    int first_, n_, tiles_;
    bool unpacks_;
    int64_t cells_, block_, step_;
    Tile tile_{};
    char* activations_;
    UnpackedCell* weights_;
};

template <Codes codes, Scales scales, bool has_table>
void run(const Job& job) {
    if constexpr (scales == Scales::super_half_min) {
        return multiply_q2_k_avx2(job);
    }
    using P = Packed<codes, scales, has_table>;
    using U = typename P::WhenUnpacked;
    static constexpr Functions functions = {
        {multiply_tile<P, 1>, multiply_tile<P, 2>, multiply_tile<P, 3>, multiply_tile<P, 4>},
        {multiply_tile<U, 1>, multiply_tile<U, 2>, multiply_tile<U, 3>, multiply_tile<U, 4>},
        unpack<P>};
    __m256i table = _mm256_setzero_si256();
    if constexpr (has_table) {
        const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(job.format.table));
        const __m128i zero = _mm_set1_epi8(static_cast<char>(is_signed<codes, has_table> ? 0 : 0x80));
        table = _mm256_broadcastsi128_si256(_mm_xor_si128(values, zero));
    }
    const int chunks = (job.n + most_columns - 1) / most_columns;
    for (int i = 0; i < chunks; ++i) {
        const int first = job.n * i / chunks, end = job.n * (i + 1) / chunks;
        Columns(job, functions, table, first, end - first).run();
    }
}
