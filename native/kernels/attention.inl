// What attention shares on all instruction sets; each file has its own copy.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/attention_layout.h"
#include "kernels/format.h"
#include "kernels/inline.h"

namespace medusa::kernels {
namespace {

constexpr int lanes = attention_lanes;

// On x86, into the second-level cache: the first can wait for only a few lines at a time, and on Zen 4 they come from
// memory at half its speed.
MEDUSA_INLINE void prefetch_line(const char* at) {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_prefetch(at, _MM_HINT_T1);
#elif defined(__GNUC__)
    __builtin_prefetch(at);
#else
    __prefetch(at);
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
    size_t bytes() const { return cell_bytes(type, size); }
};

// 16 cells whose lines are fetched while others are worked on.
struct Later {
    const char* at = nullptr;
    size_t stride = 0, bytes = 0;

    MEDUSA_INLINE void fetch(int64_t cell) const {
        const char* line = at + static_cast<size_t>(cell) * stride;
        for (size_t byte = 0; byte < bytes; byte += 64) prefetch_line(line + byte);
    }
};

// The numbers of 16 cells.
struct Block {
    const char* at;
    size_t stride;
};

// One part of the work on some rows. `Isa` has the loops of an instruction set.
template <typename Isa>
class Part {
  public:
    Part(const Attention& attention, const AttentionShare& share)
        : a_(attention),
          share_(share),
          rows_each_(a_.rows_per_key_head()),
          first_key_head_(share.begin / rows_each_),
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
    // For a row and a block's 16 cells. What is used together lies together: the rows of a block.
    float* scores(int64_t row, int64_t block) const {
        return static_cast<float*>(share_.scratch) + (block * rows() + row) * lanes;
    }
    AttentionPart part(int i) const { return layout_.part(share_.scratch, i); }

    // The scores of this part's cells, and how large their values are.
    void score() {
        for (int64_t r = 0; r < rows(); ++r) {
            const int64_t row = share_.begin + r, token = a_.token_of(row), head = a_.head_of(row);
            const auto strides = static_cast<size_t>(token) * a_.q_token + static_cast<size_t>(head) * a_.q_head;
            std::memcpy(memory_.q + r * a_.key_size, a_.q + strides, static_cast<size_t>(a_.key_size) * sizeof(float));
            memory_.mask[r] = a_.mask ? a_.mask + static_cast<size_t>(token) * a_.mask_token : nullptr;
        }
        find_blocks();
        std::fill_n(memory_.largest, rows() * lanes, -INFINITY);
        memory_.has_own() = 0;
        std::memset(memory_.shared_most, 0, layout_.shared_most_bytes());
        for (int64_t i = memory_.first(); i < memory_.last(); ++i) {
            each_key_head([&](int64_t key_head, int64_t begin, int64_t end) { score(i, key_head, begin, end); });
        }
        for (int64_t r = 0; r < rows(); ++r) {
            const float* lane = memory_.largest + r * lanes;
            memory_.tops[r] = *std::max_element(lane, lane + lanes);
        }
    }

    // Leaves out cells that no row sees, and divides the others among the parts.
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
        int64_t key_head = first_key_head_;
        for (int64_t begin = 0; begin < rows(); ++key_head) {
            const int64_t end = std::min(rows(), (key_head + 1) * rows_each_ - share_.begin);
            work(key_head, begin, end);
            begin = end;
        }
    }

    static Block block(const Cells& cells, int64_t key_head, int64_t cell) {
        return {cells.at(key_head, cell), cells.cell};
    }
    Later later(const Cells& cells, int64_t key_head, int64_t i) const {
        const int64_t cell = memory_.blocks[std::min(i + ahead, memory_.last() - 1)].cell;
        return {cells.at(key_head, cell), cells.cell, cells.bytes()};
    }

    // Whether so few rows share a key head that its halves need not be kept as floats.
    static bool straight(const Cells& cells, int64_t rows) {
        return cells.type == CellType::f16 && rows <= 4 * Isa::tile;
    }

    // A block as floats.
    Block unpack(const Cells& cells, const Block& from) const {
        const char* at = from.at;
        for (int c = 0; c < lanes; ++c, at += from.stride) {
            Isa::unpack(cells.type, at, memory_.floats + c * cells.size, cells.size);
        }
        return {reinterpret_cast<const char*>(memory_.floats), static_cast<size_t>(cells.size) * sizeof(float)};
    }

    // Some rows of a key head: in as few tiles as possible, without divisions.
    template <typename Work>
    static MEDUSA_INLINE void each_tile(int64_t begin, int64_t end, Work&& work) {
        for (int64_t left = end - begin; left > 0;) {
            const int64_t n = left <= Isa::tile ? left : left < 2 * Isa::tile ? (left + 1) / 2 : Isa::tile;
            work(end - left, n);
            left -= n;
        }
    }

    void score(int64_t i, int64_t key_head, int64_t begin, int64_t end) {
        const int64_t cell = memory_.blocks[i].cell;
        const Block keys = block(keys_, key_head, cell);
        if (straight(keys_, end - begin)) {
            multiply<typename Isa::Halves>(keys, key_head, begin, end, i);
        } else {
            multiply<typename Isa::Floats>(unpack(keys_, keys), key_head, begin, end, i);
        }
        const float scale = a_.cap != 0 ? a_.scale / a_.cap : a_.scale;
        Isa::finish(scores(begin, i), end - begin, a_.mask ? memory_.mask + begin : nullptr, cell, scale, a_.cap,
                    memory_.largest + begin * lanes);
        note_most(i, key_head, begin, end);
    }

    // An instruction set's functions for 1 to Isa::tile rows.
    template <typename Type>
    static void multiply_tile(int64_t n, const Block& keys, const Later* later, int64_t size, const float* q,
                              float* to) {
        const auto all = []<int... rows>(std::integer_sequence<int, rows...>) {
            return std::array{&Isa::template multiply<rows + 1, Type>...};
        };
        static constexpr auto steps = all(std::make_integer_sequence<int, Isa::tile>());
        steps[n - 1](keys, later, size, q, to);
    }
    template <typename Type>
    static void add_tile(int64_t n, const Block& values, const Later& later, int64_t size, const float* weights,
                         float* sums) {
        const auto all = []<int... rows>(std::integer_sequence<int, rows...>) {
            return std::array{&Isa::template add<rows + 1, Type>...};
        };
        static constexpr auto steps = all(std::make_integer_sequence<int, Isa::tile>());
        steps[n - 1](values, later, size, weights, sums);
    }

    // The first rows fetch the lines of later keys, the last ones those of the corresponding values.
    template <typename Type>
    void multiply(const Block& keys, int64_t key_head, int64_t begin, int64_t end, int64_t i) const {
        Later fetched[2] = {later(keys_, key_head, i), {}};
        each_tile(begin, end, [&](int64_t first, int64_t n) {
            if (first + n == end) fetched[1] = later(values_, key_head, i);
            multiply_tile<Type>(n, keys, fetched, a_.key_size, memory_.q + first * a_.key_size, scores(first, i));
            fetched[0].bytes = 0;
        });
    }

    template <typename Type>
    void add(const Block& values, int64_t key_head, int64_t begin, int64_t end, int64_t i) const {
        Later fetched = later(values_, key_head, i);
        each_tile(begin, end, [&](int64_t first, int64_t n) {
            add_tile<Type>(n, values, fetched, a_.value_size, scores(first, i), memory_.sums + first * a_.value_size);
            fetched.bytes = 0;
        });
    }

    // Which values count for the size of a row's sums: those it sees, wherever they lie.
    void note_most(int64_t i, int64_t key_head, int64_t begin, int64_t end) {
        const auto [cell, all] = memory_.blocks[i];
        uint16_t* shared = memory_.shared_most + layout_.shared_row(key_head - first_key_head_);
        if (all == 0xFFFF) return raise(shared, block(values_, key_head, cell), lanes);
        for (int c = 0; c < lanes; ++c) {
            const Block value = block(values_, key_head, cell + c);
            if (all >> c & 1) {
                raise(shared, value, 1);
                continue;
            }
            if (!memory_.has_own()) {
                memory_.has_own() = 1;
                std::memset(memory_.own_most, 0, layout_.own_most_bytes());
            }
            for (int64_t r = begin; r < end; r = next_token(r, end)) {
                if (scores(r, i)[c] == -INFINITY) continue;
                raise(memory_.own_most + r * a_.value_size, value, 1);
            }
        }
    }

    // The first row of the token after row r's.
    int64_t next_token(int64_t r, int64_t end) const {
        const int64_t group = a_.group();
        return std::min(end, r + group - (share_.begin + r) % group);
    }

    // Raises largest magnitudes to cover the values of some cells: of halves, or of the scales of blocks.
    void raise(uint16_t* most, const Block& values, int count) const {
        if (values_.type == CellType::f16) return Isa::raise(most, values, count, a_.value_size);
        const char* from = values.at;
        for (int64_t d = 0; d < a_.value_size; d += quantized_block, from += block_bytes(a_.value_type)) {
            uint16_t largest = most[d];
            const char* at = from;
            for (int c = 0; c < count; ++c, at += values.stride) {
                uint16_t scale;
                std::memcpy(&scale, at, sizeof(scale));
                largest = std::max<uint16_t>(largest, scale & 0x7FFF);
            }
            std::fill_n(most + d, quantized_block, largest);
        }
    }

    // Turns scores into weights.
    void weigh() {
        static constexpr int sums = lanes / 2;
        std::memset(memory_.total_lanes, 0, static_cast<size_t>(rows() * sums) * sizeof(double));
        for (int64_t r = 0; r < rows(); ++r) {
            float largest = sink(r);
            for (int i = 0; i < share_.parts; ++i) largest = std::max(largest, part(i).tops[r]);
            // All cells may be hidden: exp(-infinity - 0) is 0.
            memory_.largest[r * lanes] = largest == -INFINITY ? 0 : largest;
        }
        Isa::weigh(scores(0, memory_.first()), memory_.count(), rows(), memory_.largest, memory_.total_lanes);
        for (int64_t r = 0; r < rows(); ++r) {
            const double* lane = memory_.total_lanes + r * sums;
            double sum = 0;
            for (int i = 0; i < sums; ++i) sum += lane[i];
            if (sink(r) != -INFINITY && share_.part == 0) sum += Isa::weight_of(sink(r) - memory_.largest[r * lanes]);
            memory_.totals[r] = sum;
        }
    }

    float sink(int64_t r) const { return a_.sinks ? a_.sinks[a_.head_of(share_.begin + r)] : -INFINITY; }

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
                const Block values = block(values_, key_head, memory_.blocks[i].cell);
                if (straight(values_, end - begin)) {
                    add<typename Isa::Halves>(values, key_head, begin, end, i);
                } else {
                    add<typename Isa::Floats>(unpack(values_, values), key_head, begin, end, i);
                }
            });
        }
    }

    static constexpr int64_t ahead = 2;  // blocks from the one whose lines are fetched to the one at work

    // Largest magnitudes of the values that a row sees.
    const uint16_t* most_of(int64_t r) const {
        const int64_t each = a_.rows_per_key_head(), head = (share_.begin + r) / each - share_.begin / each;
        auto* most = reinterpret_cast<uint16_t*>(memory_.floats);
        std::memset(most, 0, static_cast<size_t>(a_.value_size) * sizeof(*most));
        for (int i = 0; i < share_.parts; ++i) {
            const AttentionPart one = part(i);
            raise(most, one.shared_most + layout_.shared_row(head));
            if (one.has_own()) raise(most, one.own_most + r * a_.value_size);
        }
        return most;
    }

    void raise(uint16_t* most, const uint16_t* to) const {
        for (int64_t d = 0; d < a_.value_size; ++d) most[d] = std::max(most[d], to[d]);
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
                for (int64_t d = 0; d < a_.value_size; ++d) sum[d] += one.sums[at + d] - memory_.starts[at + d];
            }
            for (int64_t d = 0; d < a_.value_size; ++d) out[d] = sum[d] * inverse;
        }
    }

    const Attention& a_;
    const AttentionShare& share_;
    const int64_t rows_each_, first_key_head_;
    const AttentionLayout layout_;
    const AttentionPart memory_;
    const Cells keys_, values_;
};

}  // namespace
}  // namespace medusa::kernels
