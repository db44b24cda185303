#include "heads/prefix_layer.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace medusa {
namespace {

constexpr int64_t cell_step = 256;  // graphs attend to a multiple of this many cells, some of them masked
constexpr int64_t most_rows = 64;   // states computed at a time

// As few sizes as possible, so that few graphs are kept: small ones as they are, larger ones as powers of two.
size_t rows_of_next_chunk(size_t rows) {
    constexpr size_t exact = 8;
    return rows <= exact ? rows : std::min<size_t>(std::bit_floor(rows), most_rows);
}

// The layer over heads of equal size.
class PrefixGraph {
  public:
    PrefixGraph(ggml_context* context, const Heads& heads, const PrefixInputs& in)
        : c(context),
          heads_(heads),
          params_(heads.metadata().prefix),
          weights_(heads.prefix()),
          in_(in),
          head_size_(weights_.query.weight->ne[1] / params_.head_count) {}

    ggml_tensor* output() const {
        ggml_tensor* all = normed(in_.states, weights_.attention_norm);
        ggml_tensor* x = ggml_add(c, linear(c, weights_.output, attention(all)), last_of(in_.states));
        ggml_tensor* gate_up = linear(c, weights_.gate_up, normed(x, weights_.feed_forward_norm));
        const int64_t inner = gate_up->ne[0] / 2;
        ggml_tensor* gate = ggml_view_2d(c, gate_up, inner, 1, gate_up->nb[1], 0);
        ggml_tensor* up =
            ggml_view_2d(c, gate_up, inner, 1, gate_up->nb[1], static_cast<size_t>(inner) * sizeof(float));
        x = ggml_add(c, x, linear(c, weights_.down, ggml_mul(c, ggml_silu(c, gate), up)));
        return normed(x, weights_.output_norm);
    }

    PrefixCells cells() const { return cells(normed(in_.states, weights_.attention_norm)); }

  private:
    // states: after the norm.
    PrefixCells cells(ggml_tensor* states) const {
        const int64_t kv_heads = params_.head_count_kv, width = head_size_ * kv_heads, n = states->ne[1];
        ggml_tensor* key_value = linear(c, weights_.key_value, states);  // [2 * width, n]
        ggml_tensor* key = ggml_view_2d(c, key_value, width, n, key_value->nb[1], 0);
        ggml_tensor* value =
            ggml_view_2d(c, key_value, width, n, key_value->nb[1], static_cast<size_t>(width) * sizeof(float));
        key = ggml_reshape_2d(c, turned(key, kv_heads, in_.positions), width, n);
        return {ggml_set_rows(c, in_.keys, key, in_.cells), ggml_set_rows(c, in_.values, value, in_.cells)};
    }

    ggml_tensor* last_of(ggml_tensor* t) const {
        if (in_.last_row) return ggml_get_rows(c, t, in_.last_row);
        return ggml_view_2d(c, t, t->ne[0], 1, t->nb[1], static_cast<size_t>(t->ne[1] - 1) * t->nb[1]);
    }

    ggml_tensor* normed(ggml_tensor* x, ggml_tensor* weight) const {
        return ggml_mul(c, ggml_rms_norm(c, x, params_.norm_eps), weight);
    }

    // [heads * size, n] -> [size, heads, n], with rotary embedding over halves.
    ggml_tensor* turned(ggml_tensor* x, int64_t heads, ggml_tensor* positions) const {
        ggml_tensor* split = ggml_view_3d(c, x, head_size_, heads, x->ne[1],
                                          static_cast<size_t>(head_size_) * sizeof(float), x->nb[1], 0);
        return ggml_rope_ext(c, split, positions, nullptr, static_cast<int>(head_size_), GGML_ROPE_TYPE_NEOX, 0,
                             params_.rope_freq_base, 1.0f, 0.0f, 1.0f, 32.0f, 1.0f);
    }

    // Keys and values of all states go into their cells; the newest state attends to all of them. [heads * size, 1]
    ggml_tensor* attention(ggml_tensor* states) const {
        const PrefixCells written = cells(states);
        // Views of what was written: that fixes the order of operations.
        const auto seen = [&](ggml_tensor* cache) {
            return ggml_view_3d(c, cache, head_size_, in_.mask->ne[0], params_.head_count_kv, cache->nb[1],
                                ggml_row_size(GGML_TYPE_F16, head_size_), 0);
        };
        ggml_tensor* query = linear(c, weights_.query, last_of(states));
        query = ggml_permute(c, turned(query, params_.head_count, in_.last_position), 0, 2, 1, 3);  // [size, 1, heads]
        ggml_tensor* out = attend(query, seen(written.keys), seen(written.values));
        return ggml_reshape_2d(c, out, head_size_ * params_.head_count, 1);
    }

    // query [size, 1, heads], keys and values [size, cells, key heads] -> [size * heads]; unfused where the device has
    // no fused operator.
    ggml_tensor* attend(ggml_tensor* query, ggml_tensor* keys, ggml_tensor* values) const {
        const float scale = 1.0f / std::sqrt(static_cast<float>(head_size_));
        ggml_tensor* fused = ggml_flash_attn_ext(c, query, keys, values, in_.mask, scale, 0.0f, 0.0f);
        if (ggml_backend_dev_supports_op(heads_.device(), fused)) return fused;
        // [cells, 1, heads], [cells, size, ...]
        ggml_tensor* weights = ggml_soft_max_ext(c, ggml_mul_mat(c, keys, query), in_.mask, scale, 0.0f);
        ggml_tensor* by_size = ggml_cont(c, ggml_permute(c, values, 1, 0, 2, 3));
        return ggml_mul_mat(c, by_size, weights);
    }

    ggml_context* c;
    const Heads& heads_;
    const PrefixParams& params_;
    const PrefixWeights& weights_;
    const PrefixInputs& in_;
    const int64_t head_size_;
};

}  // namespace

ggml_tensor* prefix_output(ggml_context* c, const Heads& heads, const PrefixInputs& in) {
    return PrefixGraph(c, heads, in).output();
}

PrefixCells prefix_cells(ggml_context* c, const Heads& heads, const PrefixInputs& in) {
    return PrefixGraph(c, heads, in).cells();
}

PrefixCache::PrefixCache(const Heads& heads, int64_t tokens) : heads_(heads) {
    allocate(tokens);
}

void PrefixCache::allocate(int64_t cells) {
    const PrefixParams& params = heads_.metadata().prefix;
    const int64_t width = heads_.prefix().query.weight->ne[1] / params.head_count * params.head_count_kv;
    const int64_t rounded = (cells + cell_step - 1) / cell_step * cell_step;
    DeviceTensors tensors(2);
    ggml_tensor* keys = ggml_new_tensor_2d(tensors.context(), GGML_TYPE_F16, width, rounded);
    ggml_tensor* values = ggml_new_tensor_2d(tensors.context(), GGML_TYPE_F16, width, rounded);
    tensors.allocate(heads_.device(), "the cache of the heads' prefix layer", "lower {ctx_size}");
    tensors.clear();  // masked cells count for nothing, unless they happen to hold NaN
    std::vector<char> held(static_cast<size_t>(count) * ggml_row_size(GGML_TYPE_F16, width));
    for (const auto& [from, to] : {std::pair{keys_, keys}, std::pair{values_, values}}) {
        if (held.empty()) break;
        ggml_backend_tensor_get(from, held.data(), 0, held.size());
        ggml_backend_tensor_set(to, held.data(), 0, held.size());
    }
    tensors_ = std::move(tensors);
    keys_ = keys, values_ = values;
}

void PrefixCache::grow(int64_t tokens) {
    if (tokens > capacity()) allocate(std::max(tokens, 2 * capacity()));
}

void PrefixCache::expect(int position) {
    roll_back(position);
    if (position == start + count) return;
    start = position;
    count = 0;
}

void PrefixCache::roll_back(int position) {
    count = std::clamp<int64_t>(position - start, 0, count);
}

void PrefixCache::save(StateWriter& out) const {
    const size_t used = static_cast<size_t>(count) * keys_->nb[1];
    out.number<int32_t>(start);
    out.number<int64_t>(count);
    out.number<uint64_t>(keys_->nb[1]);
    for (ggml_tensor* cells : {keys_, values_}) {
        const std::span<uint8_t> room = out.room(used);
        if (!room.empty()) ggml_backend_tensor_get(cells, room.data(), 0, used);
    }
}

void PrefixCache::restore(StateReader& in) {
    constexpr int64_t most = 1 << 24;
    count = 0;
    const auto first = in.number<int32_t>();
    const auto cells = in.number<int64_t>();
    if (first < 0 || cells < 0 || cells > most || in.number<uint64_t>() != keys_->nb[1]) {
        throw Error("a saved prefix layer is of other heads");
    }
    const size_t used = static_cast<size_t>(cells) * keys_->nb[1];
    const auto keys = in.bytes(used), values = in.bytes(used);
    grow(cells);
    if (used > 0) {
        ggml_backend_tensor_set(keys_, keys.data(), 0, used);
        ggml_backend_tensor_set(values_, values.data(), 0, used);
    }
    start = first;
    count = cells;
}

PrefixLayer::PrefixLayer(std::shared_ptr<const Heads> heads, ggml_backend_t backend, std::shared_ptr<PrefixCache> cache)
    : heads_(std::move(heads)),
      backend_(backend),
      h_(heads_->model().embedding_size()),
      cache_(cache ? std::move(cache) : std::make_shared<PrefixCache>(*heads_, cell_step)) {}

void PrefixLayer::append(int position, std::span<const float> state) {
    roll_back(position);
    const auto known = static_cast<int64_t>(pending_.size()) / h_;
    if (position != cache_->start + cache_->count + known) {
        pending_.clear();
        cache_->expect(position);
    }
    pending_.insert(pending_.end(), state.begin(), state.end());
    is_computed_ = false;
}

void PrefixLayer::roll_back(int position) {
    const int64_t kept = std::max<int64_t>(position - cache_->start, 0), count = cache_->count;
    const auto known = count + static_cast<int64_t>(pending_.size()) / h_;
    if (kept >= known) return;
    pending_.resize(static_cast<size_t>(std::max<int64_t>(kept - count, 0) * h_));
    cache_->roll_back(position);
    is_computed_ = false;
}

void PrefixLayer::settle() {
    while (!pending_.empty()) run(rows_of_next_chunk(pending_.size() / static_cast<size_t>(h_)));
}

void PrefixLayer::save(StateWriter& out) {
    settle();
    cache_->save(out);
}

void PrefixLayer::restore(StateReader& in) {
    pending_.clear();
    chunks_.clear();  // they hold the tensors of the cache, which may grow
    is_computed_ = false;
    cache_->restore(in);
}

std::span<const float> PrefixLayer::newest() {
    settle();
    if (!is_computed_) throw Error("the prefix layer has no state of the last token: this is a bug in medusa");
    return output_;
}

// Runs the next `rows` pending states.
void PrefixLayer::run(size_t rows) {
    const auto n = static_cast<int64_t>(rows), count = cache_->count, end = count + n;
    if (end > cache_->capacity()) {
        cache_->grow(end);
        chunks_.clear();
    }
    const int64_t cells = (end + cell_step - 1) / cell_step * cell_step;
    Chunk& chunk = chunk_for(n, cells);
    std::vector<int32_t> positions(rows);
    std::vector<int64_t> indices(rows);
    for (size_t i = 0; i < rows; ++i) {
        indices[i] = count + static_cast<int64_t>(i);
        positions[i] = static_cast<int32_t>(indices[i]);
    }
    std::vector<ggml_fp16_t> mask(static_cast<size_t>(cells), ggml_fp32_to_fp16(-INFINITY));
    std::fill(mask.begin(), mask.begin() + end, ggml_fp32_to_fp16(0.0f));
    DeviceGraph::set(chunk.states, std::span(pending_).first(rows * static_cast<size_t>(h_)));
    ggml_backend_tensor_set(chunk.positions, positions.data(), 0, rows * sizeof(int32_t));
    ggml_backend_tensor_set(chunk.last_position, &positions.back(), 0, sizeof(int32_t));
    ggml_backend_tensor_set(chunk.cells, indices.data(), 0, rows * sizeof(int64_t));
    ggml_backend_tensor_set(chunk.mask, mask.data(), 0, mask.size() * sizeof(ggml_fp16_t));
    const auto out = chunk.graph.compute();
    output_.assign(out.begin(), out.end());
    pending_.erase(pending_.begin(), pending_.begin() + n * h_);
    cache_->count = end;
    is_computed_ = pending_.empty();
}

PrefixLayer::Chunk& PrefixLayer::chunk_for(int64_t rows, int64_t cells) {
    // Longer texts do not return to fewer cells, except in a short roll-back: their graphs would pile up.
    std::erase_if(chunks_, [&](const auto& made) { return made.first.second != cells; });
    auto& chunk = chunks_[{rows, cells}];
    if (!chunk) chunk = build(rows, cells);
    return *chunk;
}

std::unique_ptr<PrefixLayer::Chunk> PrefixLayer::build(int64_t rows, int64_t cells) {
    auto chunk = std::make_unique<Chunk>(Chunk{DeviceGraph(backend_, prefix_graph_tensors), {}, {}, {}, {}, {}});
    ggml_context* c = chunk->graph.context();
    chunk->states = chunk->graph.new_input(h_, rows);
    chunk->positions = chunk->graph.new_input(rows, 1, GGML_TYPE_I32);
    chunk->last_position = chunk->graph.new_input(1, 1, GGML_TYPE_I32);
    chunk->cells = chunk->graph.new_input(rows, 1, GGML_TYPE_I64);
    chunk->mask = chunk->graph.new_input(cells, 1, GGML_TYPE_F16);
    chunk->graph.finish(prefix_output(c, *heads_,
                                      {chunk->states, nullptr, chunk->positions, chunk->last_position, chunk->cells,
                                       chunk->mask, cache_->keys(), cache_->values()}));
    return chunk;
}

}  // namespace medusa
