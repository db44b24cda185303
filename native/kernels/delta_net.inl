// The gated delta net for each instruction set; each file has its own copy. `Lanes` has 16 numbers and the operations
// on them: load, store, stream (a store past the caches, to multiples of 64 bytes), scaled, fma, sum; Lanes::streamed()
// after the last stream. Sums fold halves onto each other.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/delta_net.h"
#include "kernels/format.h"

namespace medusa::kernels {
namespace {

// Decays of one head for some tokens: one number each, or one for each key number.
template <typename Lanes>
class Decays {
  public:
    Decays(const DeltaNet& net, int64_t head, int64_t first, int64_t last)
        : by_key_(net.decay_by_key), size_(net.size) {
        const int64_t each = by_key_ ? size_ : 1;
        for (int64_t t = first; t < last; ++t) {
            const float* g = net.decay + (t * net.heads + head) * each;
            for (int64_t i = 0; i < each; ++i) values_[(t - first) * each + i] = std::exp(g[i]);
        }
    }
    // Those for numbers i.. of the token, times x.
    Lanes times(const Lanes& x, int64_t token, int64_t i) const {
        return by_key_ ? x.times(Lanes::load(values_ + token * size_ + i)) : x.scaled(values_[token]);
    }

    static constexpr int64_t tokens = 8;

  private:
    bool by_key_;
    int64_t size_;
    float values_[tokens * delta_net_largest];
};

// Some rows of one head's state, which stay in the first-level cache while tokens pass over them.
template <typename Lanes>
class Rows {
  public:
    Rows(const DeltaNet& net, int64_t head, int64_t value) : net_(net), head_(head), value_(value) {}

    void load(const float* from) { std::copy(from, from + rows * net_.size, state_); }
    void save(float* to) const { std::copy(state_, state_ + rows * net_.size, to); }
    void save_past_caches(float* to) const {
        for (int64_t i = 0; i < rows * net_.size; i += delta_net_lanes) Lanes::load(state_ + i).stream(to + i);
    }

    // Token t; `place`: where its decays are.
    void advance(const Decays<Lanes>& decays, int64_t t, int64_t place) {
        const float *q = at(net_.q, t, net_.q_token, net_.q_head, net_.query_heads),
                    *k = at(net_.k, t, net_.k_token, net_.k_head, net_.key_heads),
                    *v = at(net_.v, t, net_.v_token, net_.v_head, net_.heads) + value_;
        const int64_t size = net_.size, of_head = t * net_.heads + head_;
        Lanes sums[rows] = {};
        for (int64_t i = 0; i < size; i += delta_net_lanes) {
            const Lanes keys = Lanes::load(k + i);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
                sums[r] = decays.times(Lanes::load(state_ + r * size + i), place, i).fma(keys, sums[r]);
            }
        }
        float delta[rows];
        for (int r = 0; r < rows; ++r) delta[r] = (v[r] - sums[r].sum()) * net_.beta[of_head];
        for (Lanes& sum : sums) sum = {};
        for (int64_t i = 0; i < size; i += delta_net_lanes) {
            const Lanes keys = Lanes::load(k + i), queries = Lanes::load(q + i);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
                const Lanes decayed = decays.times(Lanes::load(state_ + r * size + i), place, i);
                const Lanes row = keys.fma(Lanes::all(delta[r]), decayed);
                row.store(state_ + r * size + i);
                sums[r] = row.fma(queries, sums[r]);
            }
        }
        const float scale = 1.0f / std::sqrt(static_cast<float>(size));
        for (int r = 0; r < rows; ++r) net_.out[of_head * size + value_ + r] = sums[r].sum() * scale;
    }

  private:
    static constexpr int rows = delta_net_rows;

    const float* at(const char* data, int64_t t, size_t token_stride, size_t head_stride, int64_t heads) const {
        return reinterpret_cast<const float*>(data + static_cast<size_t>(t) * token_stride +
                                              static_cast<size_t>(head_ % heads) * head_stride);
    }

    const DeltaNet& net_;
    int64_t head_, value_;
    alignas(64) float state_[rows * delta_net_largest];
};

// Some rows of one head over tokens first..last-1. Slot 0 holds what later tokens need.
template <typename Lanes>
void advance(const DeltaNet& net, const Decays<Lanes>& decays, int64_t head, int64_t value, int64_t first,
             int64_t last) {
    const int64_t matrix = (head * net.size + value) * net.size;
    Rows<Lanes> rows(net, head, value);
    rows.load((first == 0 ? net.before : net.after) + matrix);
    for (int64_t t = first; t < last; ++t) {
        rows.advance(decays, t, t - first);
        const int64_t slot = net.tokens - 1 - t;
        if (slot < net.slots) {
            float* to = net.after + slot * net.after_slot + matrix;
            net.past_caches ? rows.save_past_caches(to) : rows.save(to);
        }
    }
    if (last < net.tokens) rows.save(net.after + matrix);
}

// Rows begin..end-1 of all heads' states.
template <typename Lanes>
void recur(const DeltaNet& net, int64_t begin, int64_t end) {
    for (int64_t head = begin / net.size; head * net.size < end; ++head) {
        const int64_t from = std::max(begin - head * net.size, int64_t{0});
        const int64_t to = std::min(end - head * net.size, net.size);
        for (int64_t first = 0; first < net.tokens; first += Decays<Lanes>::tokens) {
            const int64_t last = std::min(first + Decays<Lanes>::tokens, net.tokens);
            const Decays<Lanes> decays(net, head, first, last);
            for (int64_t value = from; value < to; value += delta_net_rows) {
                advance(net, decays, head, value, first, last);
            }
        }
    }
    if (net.past_caches) Lanes::streamed();
}

}  // namespace
}  // namespace medusa::kernels
