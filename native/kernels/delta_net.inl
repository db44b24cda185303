// Included inside the anonymous namespace of each file of an instruction set, after its standard headers. `Lanes` has
// 16 numbers and what is done with them: load, store, scaled, fma, sum. Sums fold halves onto each other.

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
    // Of numbers i.. of the token, times x.
    Lanes times(const Lanes& x, int64_t token, int64_t i) const {
        return by_key_ ? x.times(Lanes::load(values_ + token * size_ + i)) : x.scaled(values_[token]);
    }

    static constexpr int64_t tokens = 8;

  private:
    bool by_key_;
    int64_t size_;
    float values_[tokens * delta_net_largest];
};

// Some rows of one head over tokens first..last-1.
template <typename Lanes>
void advance(const DeltaNet& net, const Decays<Lanes>& decays, int64_t head, int64_t value, int64_t first,
             int64_t last) {
    constexpr int rows = delta_net_rows;
    const int64_t size = net.size, matrix = (head * size + value) * size;
    const auto slot_after = [&](int64_t token) {
        const int64_t slot = net.tokens - 1 - token;
        return net.after + (slot < net.slots ? slot : 0) * net.after_slot + matrix;
    };
    const float scale = 1.0f / std::sqrt(static_cast<float>(size));
    for (int64_t t = first; t < last; ++t) {
        const auto at = [&](const char* data, size_t token_stride, size_t head_stride, int64_t heads) {
            return reinterpret_cast<const float*>(data + static_cast<size_t>(t) * token_stride +
                                                  static_cast<size_t>(head % heads) * head_stride);
        };
        const float* q = at(net.q, net.q_token, net.q_head, net.query_heads);
        const float* k = at(net.k, net.k_token, net.k_head, net.key_heads);
        const float* v = at(net.v, net.v_token, net.v_head, net.heads) + value;
        const float* from = t == 0 ? net.before + matrix : slot_after(t - 1);
        float *to = slot_after(t), *out = net.out + (t * net.heads + head) * size + value;
        Lanes sums[rows] = {};
        for (int64_t i = 0; i < size; i += delta_net_lanes) {
            const Lanes keys = Lanes::load(k + i);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
                sums[r] = decays.times(Lanes::load(from + r * size + i), t - first, i).fma(keys, sums[r]);
            }
        }
        float delta[rows];
        for (int r = 0; r < rows; ++r) delta[r] = (v[r] - sums[r].sum()) * net.beta[t * net.heads + head];
        for (Lanes& sum : sums) sum = {};
        for (int64_t i = 0; i < size; i += delta_net_lanes) {
            const Lanes keys = Lanes::load(k + i), queries = Lanes::load(q + i);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
                const Lanes decayed = decays.times(Lanes::load(from + r * size + i), t - first, i);
                const Lanes row = keys.fma(Lanes::all(delta[r]), decayed);
                row.store(to + r * size + i);
                sums[r] = row.fma(queries, sums[r]);
            }
        }
        for (int r = 0; r < rows; ++r) out[r] = sums[r].sum() * scale;
    }
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
}
