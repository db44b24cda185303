// Included inside the anonymous namespace of each file of an instruction set, after its standard headers.

constexpr int lanes = attention_lanes, tile = attention_tile;

// Up to `tile` rows of one key head, and this thread's scratch.
struct Tile {
    const Attention& a;
    int n;
    const char *k, *v;
    const float* q[tile];
    const char* mask[tile];
    float* out[tile];
    float* scores;     // [row][cells]
    float* keys;       // [lane][key_size]
    double* sums;      // [row][value_size]
    double* weights;   // [row][lane]
    uint8_t* visible;  // [cells / lanes]: some row sees some of these cells

    Tile(const Attention& job, void* scratch) : a(job), n(0), k(nullptr), v(nullptr) {
        sums = static_cast<double*>(scratch);
        weights = sums + tile * a.value_size;
        scores = reinterpret_cast<float*>(weights + tile * lanes);
        keys = scores + tile * a.cells;
        visible = reinterpret_cast<uint8_t*>(keys + lanes * a.key_size);
    }

    // Rows begin..end-1, as many of them as fit and share a key head; the first row left over.
    int64_t take(int64_t begin, int64_t end) {
        const int64_t per_key_head = a.group() * a.tokens, key_head = begin / per_key_head;
        end = std::min({end, begin + tile, (key_head + 1) * per_key_head});
        n = static_cast<int>(end - begin);
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
};

// The instruction set's Rows: score(), normalise(), add_values() and write() of a tile.
template <typename Rows>
void attend_tile(Rows& rows) {
    rows.score();
    double total[tile];
    for (int r = 0; r < rows.n; ++r) total[r] = rows.normalise(rows.scores + r * rows.a.cells);
    std::memset(rows.sums, 0, static_cast<size_t>(rows.n * rows.a.value_size) * sizeof(double));
    using Step = void (Rows::*)(int64_t);
    static constexpr Step steps[tile] = {&Rows::template add_values<1>, &Rows::template add_values<2>,
                                         &Rows::template add_values<3>, &Rows::template add_values<4>,
                                         &Rows::template add_values<5>, &Rows::template add_values<6>,
                                         &Rows::template add_values<7>, &Rows::template add_values<8>};
    // In two steps: GCC 12's UBSan checks the index of a call through such a pointer before it is there.
    const Step step = steps[rows.n - 1];
    for (int64_t cell = 0; cell < rows.a.cells; cell += lanes) {
        if (rows.visible[cell / lanes]) (rows.*step)(cell);
    }
    for (int r = 0; r < rows.n; ++r) rows.write(r, total[r] > 0 ? 1 / total[r] : 0);
}

template <typename Rows>
void attend_rows(const Attention& a, int64_t begin, int64_t end, void* scratch) {
    Rows rows(a, scratch);
    while (begin < end) {
        begin = rows.take(begin, end);
        attend_tile(rows);
    }
}
