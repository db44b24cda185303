// Included inside the anonymous namespace of each file of an instruction set, after its standard headers.

constexpr int lanes = attention_lanes;

// GCC takes calls of functions that only prefetch for useless, and drops them: they have to be inlined.
#if defined(__GNUC__)
#define MEDUSA_INLINE __attribute__((always_inline)) inline
#else
#define MEDUSA_INLINE __forceinline
#endif

MEDUSA_INLINE void prefetch_line(const char* at) {
#if defined(__GNUC__)
    __builtin_prefetch(at);
#elif defined(_M_ARM64)
    __prefetch(at);
#else
    _mm_prefetch(at, _MM_HINT_T0);
#endif
}

// Keys or values of one kind, as rows of cells.
struct Cells {
    const char* data;
    size_t cell, head;  // strides in bytes
    CellType type;
    int64_t size;

    const char* at(int64_t key_head, int64_t i) const {
        return data + static_cast<size_t>(key_head) * head + static_cast<size_t>(i) * cell;
    }
    size_t bytes() const {
        const auto n = static_cast<size_t>(size);
        return type == CellType::f16 ? 2 * n : n / quantized_block * (type == CellType::q8_0 ? 34 : 18);
    }
};

// One part of the work on some rows. `Isa` has the loops of an instruction set.
template <typename Isa>
class Part {
  public:
    Part(const Attention& attention, const AttentionShare& share)
        : a_(attention),
          share_(share),
          layout_(attention_layout(a_, share.end - share.begin, share.parts)),
          memory_(layout_.part(share.scratch, share.part)),
          keys_{a_.k, a_.k_cell, a_.k_head, a_.key_type, a_.key_size},
          values_{a_.v, a_.v_cell, a_.v_head, a_.value_type, a_.value_size} {}

    void run(int phase) {
        switch (phase) {
            case 0:
                return score();
            case 1:
                return weigh();
            case 2:
                return add();
            default:
                return combine();
        }
    }

  private:
    int64_t rows() const { return share_.end - share_.begin; }
    // Of a row and a block's 16 cells. What is used together lies together: the rows of a block.
    float* scores(int64_t row, int64_t block) const {
        return static_cast<float*>(share_.scratch) + (block * rows() + row) * lanes;
    }
    AttentionPart part(int i) const { return layout_.part(share_.scratch, i); }

    // The scores of this part's cells, and how large their values are.
    void score() {
        for (int64_t r = 0; r < rows(); ++r) {
            const int64_t row = share_.begin + r, token = a_.token_of(row), head = a_.head_of(row);
            const auto strides = static_cast<size_t>(token) * a_.q_token + static_cast<size_t>(head) * a_.q_head;
            memory_.q[r] = reinterpret_cast<const float*>(a_.q + strides);
            memory_.mask[r] = a_.mask ? a_.mask + static_cast<size_t>(token) * a_.mask_token : nullptr;
        }
        find_blocks();
        std::memset(memory_.own_most, 0, layout_.own_most_bytes());
        std::memset(memory_.shared_most, 0, layout_.shared_most_bytes());
        for (int64_t i = memory_.first(); i < memory_.last(); ++i) {
            each_key_head([&](int64_t key_head, int64_t begin, int64_t end) { score(i, key_head, begin, end); });
        }
        for (int64_t r = 0; r < rows(); ++r) {
            memory_.largest[r] = Isa::largest(scores(r, memory_.first()), memory_.count(), rows() * lanes);
        }
    }

    // Cells that no row sees are left out; the others are shared out.
    void find_blocks() {
        const bool one_head = share_.begin / a_.rows_per_key_head() == (share_.end - 1) / a_.rows_per_key_head();
        const int64_t begin = one_head ? a_.token_of(share_.begin) : 0;
        const int64_t end = one_head ? a_.token_of(share_.end - 1) + 1 : a_.tokens;
        int64_t found = 0;
        for (int64_t cell = 0; cell < a_.cells; cell += lanes) {
            unsigned any = a_.mask ? 0 : 0xFFFF, all = 0xFFFF;
            for (int64_t token = begin; a_.mask && token < end; ++token) {
                const unsigned seen = Isa::visible(a_.mask + static_cast<size_t>(token) * a_.mask_token + 2 * cell);
                any |= seen, all &= seen;
            }
            if (any == 0) continue;
            memory_.blocks[found++] = {static_cast<int32_t>(cell), static_cast<uint16_t>(all)};
        }
        memory_.share(found, share_.part, share_.parts);
    }

    template <typename Work>
    void each_key_head(Work&& work) const {
        const int64_t each = a_.rows_per_key_head();
        for (int64_t begin = share_.begin; begin < share_.end;) {
            const int64_t key_head = begin / each, end = std::min(share_.end, (key_head + 1) * each);
            work(key_head, begin - share_.begin, end - share_.begin);
            begin = end;
        }
    }

    static MEDUSA_INLINE void prefetch(const Cells& cells, int64_t key_head, int64_t cell) {
        const char* at = cells.at(key_head, cell);
        for (size_t byte = 0; byte < cells.bytes(); byte += 64) prefetch_line(at + byte);
    }

    // Block i as floats. The lines of a later one are fetched between its cells.
    const float* unpack(const Cells& cells, int64_t key_head, int64_t i) const {
        const int64_t first = memory_.blocks[i].cell;
        const int64_t later = memory_.blocks[std::min(i + ahead, memory_.last() - 1)].cell;
        for (int c = 0; c < lanes; ++c) {
            prefetch(cells, key_head, later + c);
            if (&cells == &keys_) prefetch(values_, key_head, later + c);
            Isa::unpack(cells.type, cells.at(key_head, first + c), memory_.floats + c * cells.size, cells.size);
        }
        return memory_.floats;
    }

    void score(int64_t i, int64_t key_head, int64_t begin, int64_t end) {
        const int64_t cell = memory_.blocks[i].cell;
        const float* keys = unpack(keys_, key_head, i);
        Isa::multiply(keys, a_.key_size, memory_.q + begin, end - begin, scores(begin, i));
        const float scale = a_.cap != 0 ? a_.scale / a_.cap : a_.scale;
        for (int64_t r = begin; r < end; ++r) {
            const char* mask = memory_.mask[r] ? memory_.mask[r] + 2 * cell : nullptr;
            Isa::finish(scores(r, i), mask, scale, a_.cap);
        }
        note_most(i, key_head, begin, end);
    }

    // Which values count for the size of a row's sums: those that it sees, wherever they lie.
    void note_most(int64_t i, int64_t key_head, int64_t begin, int64_t end) {
        const auto [cell, all] = memory_.blocks[i];
        uint16_t* shared = memory_.shared_most + layout_.shared_row(key_head - share_.begin / a_.rows_per_key_head());
        if (all == 0xFFFF) return raise(shared, key_head, cell, lanes);
        for (int c = 0; c < lanes; ++c) {
            if (all >> c & 1) {
                raise(shared, key_head, cell + c, 1);
                continue;
            }
            for (int64_t r = begin; r < end; r = next_token(r, end)) {
                if (scores(r, i)[c] == -INFINITY) continue;
                raise(memory_.own_most + r * a_.value_size, key_head, cell + c, 1);
            }
        }
    }

    // The first row of the token after that of row r.
    int64_t next_token(int64_t r, int64_t end) const {
        const int64_t group = a_.group();
        return std::min(end, r + group - (share_.begin + r) % group);
    }

    // Raises largest magnitudes to those of the values of some cells: of halves, or of the scales of blocks.
    void raise(uint16_t* most, int64_t key_head, int64_t cell, int count) const {
        if (values_.type == CellType::f16) {
            return Isa::raise(most, values_.at(key_head, cell), values_.cell, count, a_.value_size);
        }
        const size_t block = values_.type == CellType::q8_0 ? 34 : 18;
        for (int c = 0; c < count; ++c) {
            const char* from = values_.at(key_head, cell + c);
            for (int64_t d = 0; d < a_.value_size; d += quantized_block, from += block) {
                uint16_t scale;
                std::memcpy(&scale, from, sizeof(scale));
                scale = std::max<uint16_t>(most[d], scale & 0x7FFF);
                for (int64_t j = d; j < d + quantized_block; ++j) most[j] = scale;
            }
        }
    }

    // Scores become weights.
    void weigh() {
        for (int64_t r = 0; r < rows(); ++r) {
            const float* sink = a_.sinks ? a_.sinks + a_.head_of(share_.begin + r) : nullptr;
            float largest = sink ? *sink : -INFINITY;
            for (int i = 0; i < share_.parts; ++i) largest = std::max(largest, part(i).largest[r]);
            double total = Isa::weigh(scores(r, memory_.first()), memory_.count(), rows() * lanes, largest);
            if (sink && *sink != -INFINITY && share_.part == 0) total += Isa::weight_of(*sink - largest);
            memory_.totals[r] = total;
        }
    }

    double total(int64_t r) const {
        double all = 0;
        for (int i = 0; i < share_.parts; ++i) all += part(i).totals[r];
        return all;
    }

    // Weights x values.
    void add() {
        for (int64_t r = 0, end = 0; r < rows(); r = end) {
            end = next_token(r, rows());
            const uint16_t* most = most_of(r);
            for (int64_t row = r; row < end; ++row) start(row, most);
        }
        for (int64_t i = memory_.first(); i < memory_.last(); ++i) {
            each_key_head([&](int64_t key_head, int64_t begin, int64_t end) {
                const float* x = unpack(values_, key_head, i);
                while (begin < end) {
                    const int64_t left = end - begin, tiles = (left + tile - 1) / tile, n = (left + tiles - 1) / tiles;
                    add_to(n, memory_.sums + begin * a_.value_size, scores(begin, i), x);
                    begin += n;
                }
            });
        }
    }

    static constexpr int tile = 8;       // rows at a time
    static constexpr int64_t ahead = 2;  // blocks from the one whose lines are fetched to the one at work

    void add_to(int64_t n, float* sums, const float* weights, const float* x) const {
        using Step = void (*)(float*, const float*, const float*, int64_t);
        static constexpr Step steps[tile] = {&Isa::template add<1>, &Isa::template add<2>, &Isa::template add<3>,
                                             &Isa::template add<4>, &Isa::template add<5>, &Isa::template add<6>,
                                             &Isa::template add<7>, &Isa::template add<8>};
        steps[n - 1](sums, weights, x, a_.value_size);
    }

    // Largest magnitudes of the values that a row sees.
    const uint16_t* most_of(int64_t r) const {
        const int64_t each = a_.rows_per_key_head(), head = (share_.begin + r) / each - share_.begin / each;
        auto* most = reinterpret_cast<uint16_t*>(memory_.floats);
        std::memset(most, 0, static_cast<size_t>(a_.value_size) * sizeof(*most));
        for (int i = 0; i < share_.parts; ++i) {
            const uint16_t* own = part(i).own_most + r * a_.value_size;
            const uint16_t* shared = part(i).shared_most + layout_.shared_row(head);
            for (int64_t d = 0; d < a_.value_size; ++d) most[d] = std::max(most[d], std::max(own[d], shared[d]));
        }
        return most;
    }

    void start(int64_t r, const uint16_t* most) {
        const double bound = total(r) * most_steps(a_.value_type);
        float *starts = memory_.starts + r * a_.value_size, *sums = memory_.sums + r * a_.value_size;
        for (int64_t d = 0; d < a_.value_size; ++d) starts[d] = sums[d] = sum_start(bound, most[d]);
    }

    void combine() {
        for (int64_t r = rows() * share_.part / share_.parts; r < rows() * (share_.part + 1) / share_.parts; ++r) {
            const int64_t row = share_.begin + r, at = r * a_.value_size;
            float* out = a_.out + (a_.token_of(row) * a_.heads + a_.head_of(row)) * a_.value_size;
            const double all = total(r);
            const float inverse = all > 0 ? static_cast<float>(1 / all) : 0;
            float* sum = memory_.floats;
            std::memset(sum, 0, static_cast<size_t>(a_.value_size) * sizeof(*sum));
            for (int i = 0; i < share_.parts; ++i) {
                const AttentionPart one = part(i);
                for (int64_t d = 0; d < a_.value_size; ++d) sum[d] += one.sums[at + d] - one.starts[at + d];
            }
            for (int64_t d = 0; d < a_.value_size; ++d) out[d] = sum[d] * inverse;
        }
    }

    const Attention& a_;
    const AttentionShare& share_;
    const AttentionLayout layout_;
    const AttentionPart memory_;
    const Cells keys_, values_;
};
