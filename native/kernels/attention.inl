// Included inside the anonymous namespace of each file of an instruction set, after its standard headers.

constexpr int lanes = attention_lanes, tile = attention_tile;

inline void prefetch_line(const char* at) {
#if defined(__GNUC__)
    __builtin_prefetch(at);
#elif defined(_M_ARM64)
    __prefetch(at);
#else
    _mm_prefetch(at, _MM_HINT_T0);
#endif
}

// How many of the rows see how many of 16 cells.
enum class Sight : uint8_t { none, some, all };

// Up to `tile` rows of one key head, and this thread's scratch.
struct Tile {
    const Attention& a;
    int n;
    const char *k, *v;
    const float* q[tile];
    const char* mask[tile];
    float* out[tile];
    int64_t stride;   // of scores: not a power of two, which would crowd all rows into one set of the cache
    float* scores;    // [row][stride]
    float* keys;      // [lane][key_size]; or
    float* products;  // [row][cell of 16][lane]
    float* sums;      // [row][value_size], each above its start, see sum_start()
    float* starts;    // [row][value_size]
    uint16_t* most;   // [row][value_size]: largest magnitude of the values that a row alone sees; the last row: all see
    Sight* seen;      // [cells / lanes]

    Tile(const Attention& job, void* scratch)
        : a(job), n(0), k(nullptr), v(nullptr), stride(attention_stride(a.cells)) {
        scores = static_cast<float*>(scratch);
        keys = products = scores + tile * stride;
        sums = keys + attention_work(a.key_size);
        starts = sums + tile * a.value_size;
        most = reinterpret_cast<uint16_t*>(starts + tile * a.value_size);
        seen = reinterpret_cast<Sight*>(most + (tile + 1) * a.value_size);
    }

    // Rows begin..end-1, as many of them as fit and share a key head; the first row left over.
    int64_t take(int64_t begin, int64_t end) {
        const int64_t per_key_head = a.group() * a.tokens, key_head = begin / per_key_head;
        const int64_t left = std::min(end, (key_head + 1) * per_key_head) - begin, tiles = (left + tile - 1) / tile;
        n = static_cast<int>((left + tiles - 1) / tiles);
        end = begin + n;
        k = a.k + key_head * a.k_head;
        v = a.v + key_head * a.v_head;
        for (int r = 0; r < n; ++r) {
            const int64_t row = (begin + r) % per_key_head, token = row / a.group();
            const int64_t head = key_head * a.group() + row % a.group();
            q[r] = reinterpret_cast<const float*>(a.q + token * a.q_token + head * a.q_head);
            mask[r] = a.mask ? a.mask + token * a.mask_token : nullptr;
            out[r] = a.out + (token * a.heads + head) * a.value_size;
        }
        return end;
    }

#if defined(__AVX2__)  // the instruction sets of x86 have this in common
    // Raises largest magnitudes to those of the values of some cells.
    void raise(uint16_t* largest, const char* values, int count) const {
        for (int64_t d = 0; d < a.value_size; d += lanes) {
            auto* at = reinterpret_cast<__m256i*>(largest + d);
            __m256i all = _mm256_loadu_si256(at);
            for (int c = 0; c < count; ++c) {
                const auto* from = reinterpret_cast<const __m256i*>(values + c * a.v_cell + 2 * d);
                all = _mm256_max_epu16(all, _mm256_and_si256(_mm256_loadu_si256(from), _mm256_set1_epi16(0x7FFF)));
            }
            _mm256_storeu_si256(at, all);
        }
    }
#endif

    void start_sums(int r, double total) {
        const uint16_t *own = most + r * a.value_size, *shared = most + tile * a.value_size;
        for (int64_t d = 0; d < a.value_size; ++d) {
            starts[r * a.value_size + d] = sums[r * a.value_size + d] = sum_start(total, std::max(own[d], shared[d]));
        }
    }

    void write(int r, float factor) const {
        const float *sum = sums + r * a.value_size, *start = starts + r * a.value_size;
        for (int64_t d = 0; d < a.value_size; ++d) out[r][d] = (sum[d] - start[d]) * factor;
    }

    // The lines of a cell are too far from those of the next for the processor to see them coming.
    void prefetch(int64_t cell) const {
        const int64_t later = cell + 2 * lanes;
        if (later >= a.cells || seen[later / lanes] == Sight::none) return;
        for (int64_t c = later; c < later + lanes; ++c) {
            for (int64_t byte = 0; byte < 2 * a.key_size; byte += 64) prefetch_line(k + c * a.k_cell + byte);
            for (int64_t byte = 0; byte < 2 * a.value_size; byte += 64) prefetch_line(v + c * a.v_cell + byte);
        }
    }
};

// Which values count for the size of a row's sums: those that it sees, wherever they lie.
template <typename Rows>
void note_largest(Rows& rows, int64_t cell, Sight sight) {
    const char* values = rows.v + cell * rows.a.v_cell;
    if (sight == Sight::all) return rows.raise(rows.most + tile * rows.a.value_size, values, lanes);
    for (int r = 0; r < rows.n; ++r) {
        for (int c = 0; c < lanes; ++c) {
            if (rows.scores[r * rows.stride + cell + c] == -INFINITY) continue;
            rows.raise(rows.most + r * rows.a.value_size, values + c * rows.a.v_cell, 1);
        }
    }
}

// The instruction set's Rows: sees(), score(), raise(), normalise() and add_values() of a tile.
template <typename Rows>
void attend_tile(Rows& rows) {
    const Attention& a = rows.a;
    std::memset(rows.most, 0, static_cast<size_t>((tile + 1) * a.value_size) * sizeof(uint16_t));
    for (int64_t cell = 0; cell < a.cells; cell += lanes) rows.seen[cell / lanes] = rows.sees(cell);
    for (int64_t cell = 0; cell < a.cells; cell += lanes) {
        rows.prefetch(cell);
        const Sight sight = rows.seen[cell / lanes];
        if (sight == Sight::none) continue;
        rows.score(cell);
        note_largest(rows, cell, sight);
    }
    float inverse[tile];
    for (int r = 0; r < rows.n; ++r) {
        const double total = rows.normalise(rows.scores + r * rows.stride);
        inverse[r] = total > 0 ? static_cast<float>(1 / total) : 0;
        rows.start_sums(r, total);
    }
    using Step = void (Rows::*)(int64_t);
    static constexpr Step steps[tile] = {&Rows::template add_values<1>, &Rows::template add_values<2>,
                                         &Rows::template add_values<3>, &Rows::template add_values<4>,
                                         &Rows::template add_values<5>, &Rows::template add_values<6>,
                                         &Rows::template add_values<7>, &Rows::template add_values<8>};
    // In two steps: GCC 12's UBSan checks the index of a call through such a pointer before it is there.
    const Step step = steps[rows.n - 1];
    for (int64_t cell = 0; cell < a.cells; cell += lanes) {
        if (rows.seen[cell / lanes] != Sight::none) (rows.*step)(cell);
    }
    for (int r = 0; r < rows.n; ++r) rows.write(r, inverse[r]);
}

template <typename Rows>
void attend_rows(const Attention& a, int64_t begin, int64_t end, void* scratch) {
    Rows rows(a, scratch);
    while (begin < end) {
        begin = rows.take(begin, end);
        attend_tile(rows);
    }
}
