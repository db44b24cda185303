#include "heads/stream_levels.h"

#include <algorithm>

namespace medusa {
namespace {

constexpr int64_t cell_step = 256;  // passes cover a multiple of this many cells, as in libllama
constexpr float largest_half = 65504.0f;
constexpr ggml_fp16_t hidden = 0xFC00, shown = 0;  // minus infinity, zero

// What adapters add to the `rows` products from `first` on.
ggml_tensor* part_of(ggml_context* c, ggml_tensor* added, int64_t first, int64_t rows) {
    return ggml_view_2d(c, added, rows, added->ne[1], added->nb[1], static_cast<size_t>(first) * sizeof(float));
}

ggml_tensor* adapted(ggml_context* c, const Adapter& adapter, ggml_tensor* x) {
    return adapter.a ? ggml_mul_mat(c, adapter.b, ggml_mul_mat(c, adapter.a, x)) : nullptr;
}

// layer(x) plus what its adapter adds.
ggml_tensor* with(ggml_context* c, const Linear& layer, ggml_tensor* x, ggml_tensor* added, int64_t first = 0) {
    ggml_tensor* y = linear(c, layer, x);
    return added ? ggml_add(c, y, part_of(c, added, first, y->ne[0])) : y;
}

ggml_tensor* turned(ggml_context* c, ggml_tensor* x, ggml_tensor* positions, const Rotary& r) {
    return ggml_rope_ext(c, x, positions, r.factors, r.size, r.mode, r.trained_context, r.base, r.scale,
                         r.extrapolation, r.magnitude, r.beta_fast, r.beta_slow);
}

}  // namespace

StreamLevels::StreamLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads, const AttentionTap& attention)
    : HeadsLevels(std::move(heads), depth, std::move(threads)), attention_(attention) {
    if (heads_->metadata().streams.root) {
        embeddings_ = std::make_unique<TokenEmbeddings>(heads_->model(), heads_->metadata().embedding_scale);
    }
    check_device();
}

// One device must have everything that a pass reads.
void StreamLevels::check_device() const {
    const auto reaches = [&](const ggml_tensor* tensor) {
        return !tensor || ggml_backend_supports_buft(backend_.get(), ggml_backend_buffer_get_type(tensor->buffer));
    };
    for (size_t i = 0; i < attention_.layers().size(); ++i) {
        const LayerAttention& cache = attention_.layers()[i];
        const StreamLayer& base = heads_->streams()->layers()[i];
        if (!reaches(cache.keys) || !reaches(cache.rotary.factors) || !reaches(base.query.weight) ||
            !reaches(base.down.weight)) {
            throw Error("layer " + std::to_string(heads_->metadata().streams.first_layer + static_cast<int>(i)) +
                            " is on another device than the output matrix, which streams do not support",
                        "put all layers on one device ({n_gpu_layers}), or use {no_spec}");
        }
    }
}

int64_t StreamLevels::choose_places() {
    places_.clear();
    int64_t end = 0;
    const auto cells = static_cast<int64_t>(seen_.size()), wanted = static_cast<int64_t>(depth_);
    for (int64_t cell = first_place_; cell < cells && std::ssize(places_) < wanted; ++cell) {
        if (!seen_[static_cast<size_t>(cell)]) places_.push_back(cell);
    }
    if (places_.empty()) throw Error("streams found no free cell: this is a bug in medusa");
    for (int64_t cell = 0; cell < cells; ++cell) {
        if (seen_[static_cast<size_t>(cell)]) end = cell + 1;
    }
    end = std::max(end, places_.back() + 1);
    // At the end of the context there are fewer cells than streams, but no room for trees as deep, either: the streams
    // that no level asks for share the last cell.
    places_.resize(static_cast<size_t>(wanted), places_.back());
    return std::min((end + cell_step - 1) / cell_step * cell_step, cells);
}

void StreamLevels::set_inputs(const DraftInput& input) {
    const size_t h = input.hidden.size(), cells = static_cast<size_t>(pass_->cells);
    std::vector<float> common(input.hidden.begin(), input.hidden.end());
    if (embeddings_) {
        std::vector<float> root(h);
        embeddings_->row(input.context.back(), root);
        heads_->streams()->add_root(root, common);
    }
    states_.resize(static_cast<size_t>(depth_) * h);
    mask_.assign(static_cast<size_t>(depth_) * cells, hidden);
    std::vector<int32_t> positions;
    for (int stream = 0; stream < depth_; ++stream) {
        const auto embedding = heads_->streams()->embedding(stream);
        const auto state = std::span(states_).subspan(static_cast<size_t>(stream) * h, h);
        for (size_t i = 0; i < h; ++i) state[i] = common[i] + embedding[i];
        positions.push_back(static_cast<int32_t>(input.context.size()) - 1 + stream);
        const auto row = std::span(mask_).subspan(static_cast<size_t>(stream) * cells, cells);
        for (size_t cell = 0; cell < cells; ++cell) {
            if (seen_[cell]) row[cell] = shown;
        }
        for (int i = 0; i <= stream; ++i) row[static_cast<size_t>(places_[static_cast<size_t>(i)])] = shown;
    }
    DeviceGraph::set(pass_->states, states_);
    ggml_backend_tensor_set(pass_->positions, positions.data(), 0, positions.size() * sizeof(int32_t));
    ggml_backend_tensor_set(pass_->places, places_.data(), 0, places_.size() * sizeof(int64_t));
    ggml_backend_tensor_set(pass_->mask, mask_.data(), 0, mask_.size() * sizeof(ggml_fp16_t));
}

void StreamLevels::begin_step(const DraftInput& input) {
    // The state belongs to the token before the root, which sees all tokens up to itself.
    const auto text = static_cast<int>(input.context.size()) - 1;
    if (const int seen = attention_.seen_by(input.row, seen_); seen != text) {
        throw DraftsEnd("the last of " + std::to_string(text) + " tokens saw " + std::to_string(seen) +
                        " of them, which streams cannot follow");
    }
    const int64_t cells = choose_places();
    if (!pass_ || pass_->cells != cells) {
        pass_.reset();
        pass_ = build(cells);
    }
    set_inputs(input);
    output_ = pass_->graph.compute();
}

std::span<const float> StreamLevels::probabilities(int depth, std::span<const Token>) {
    const auto width = static_cast<size_t>(heads_->output_rows());
    return output_.subspan(static_cast<size_t>(depth - 1) * width, width);
}

ggml_tensor* StreamLevels::normed(ggml_context* c, ggml_tensor* x, ggml_tensor* weight) const {
    return ggml_mul(c, ggml_rms_norm(c, x, heads_->streams()->norm_eps()), weight);
}

ggml_tensor* StreamLevels::attention(Pass& pass, size_t number, ggml_tensor* x) const {
    ggml_context* c = pass.graph.context();
    const StreamLayer& base = heads_->streams()->layers()[number];
    const LayerAttention& cache = attention_.layers()[number];
    const int64_t n = x->ne[1], queries = cache.key_size * cache.heads, keys = cache.key_size * cache.key_heads;
    ggml_tensor* added = adapted(c, base.query_key_value, x);
    ggml_tensor* query = ggml_reshape_3d(c, with(c, base.query, x, added), cache.key_size, cache.heads, n);
    ggml_tensor* key = ggml_reshape_3d(c, with(c, base.key, x, added, queries), cache.key_size, cache.key_heads, n);
    ggml_tensor* value = with(c, base.value, x, added, queries + keys);
    if (base.query_norm) query = normed(c, query, base.query_norm);
    if (base.key_norm) key = normed(c, key, base.key_norm);
    query = ggml_permute(c, turned(c, query, pass.positions, cache.rotary), 0, 2, 1, 3);
    key = ggml_reshape_2d(c, turned(c, key, pass.positions, cache.rotary), keys, n);
    // Views of what was written: that fixes the order of operations.
    const auto written = [&](ggml_tensor* to, ggml_tensor* rows, int64_t size) {
        rows = ggml_clamp(c, rows, -largest_half, largest_half);
        ggml_tensor* all = ggml_set_rows(c, to, rows, pass.places);
        return ggml_view_3d(c, all, size, pass.cells, cache.key_heads, all->nb[1], ggml_row_size(to->type, size), 0);
    };
    ggml_tensor* seen_keys = written(cache.keys, key, cache.key_size);
    ggml_tensor* seen_values = written(cache.values, value, cache.value_size);
    ggml_tensor* out = ggml_flash_attn_ext(c, query, seen_keys, seen_values, pass.mask, cache.scale, 0.0f, 0.0f);
    return ggml_reshape_2d(c, out, cache.value_size * cache.heads, n);
}

ggml_tensor* StreamLevels::feed_forward(ggml_context* c, const StreamLayer& base, ggml_tensor* x) const {
    ggml_tensor* added = adapted(c, base.gate_up, x);
    ggml_tensor* gate = with(c, base.gate, x, added);
    ggml_tensor* up = with(c, base.up, x, added, gate->ne[0]);
    ggml_tensor* inner = ggml_swiglu_split(c, gate, up);
    return with(c, base.down, inner, adapted(c, base.to_down, inner));
}

ggml_tensor* StreamLevels::layer(Pass& pass, size_t number, ggml_tensor* x) const {
    ggml_context* c = pass.graph.context();
    const StreamLayer& base = heads_->streams()->layers()[number];
    ggml_tensor* seen = attention(pass, number, normed(c, x, base.attention_norm));
    x = ggml_add(c, x, with(c, base.output, seen, adapted(c, base.to_output, seen)));
    return ggml_add(c, x, feed_forward(c, base, normed(c, x, base.feed_forward_norm)));
}

std::unique_ptr<StreamLevels::Pass> StreamLevels::build(int64_t cells) const {
    constexpr size_t tensors_per_layer = 64;
    const StreamWeights& weights = *heads_->streams();
    auto pass = std::make_unique<Pass>(
        Pass{DeviceGraph(backend_.get(), 16 + tensors_per_layer * weights.layers().size()), cells, {}, {}, {}, {}});
    ggml_context* c = pass->graph.context();
    pass->states = pass->graph.new_input(heads_->model().embedding_size(), depth_);
    pass->positions = pass->graph.new_input(depth_, 1, GGML_TYPE_I32);
    pass->places = pass->graph.new_input(depth_, 1, GGML_TYPE_I64);
    pass->mask = pass->graph.new_input(cells, depth_, GGML_TYPE_F16);
    ggml_tensor* x = pass->states;
    for (size_t number = 0; number < weights.layers().size(); ++number) x = layer(*pass, number, x);
    x = linear(c, heads_->output(0), normed(c, x, weights.output_norm()));
    pass->graph.finish(ggml_soft_max(c, x));
    return pass;
}

namespace {

constexpr int sequence[] = {0};

ContextParams params_for(const Heads& heads, int longest, Threads threads) {
    if (!heads.streams()) throw Error("only streams read the context of a text");
    if (longest < 1) throw Error("streams: the longest text must have tokens");
    const DrafterNeeds needs = needs_of(heads);
    ContextParams params;
    params.context_size = longest + heads.head_count();  // cells for the streams after those of the text
    params.threads = threads;
    params.tap_layers = needs.layers;
    params.tap_attention = needs.attention;
    return params;
}

}  // namespace

StreamReader::StreamReader(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads, int longest,
                           Threads threads)
    : heads_(std::move(heads)), longest_(longest), context_(model, params_for(*heads_, longest, threads)) {
    if (&heads_->model() != model.get()) throw Error("these heads were loaded for another model");
    levels_ = std::make_unique<StreamLevels>(
        heads_, heads_->head_count(), [most = threads.most] { return most; }, *context_.attention());
    levels_->keep_free(longest);
}

StreamReader::~StreamReader() = default;

void StreamReader::read(std::span<const Token> tokens, int first, const OnDraft& on_draft) {
    const int count = static_cast<int>(tokens.size());
    if (count < 1 || count > longest_ || first < 0) {
        throw Error("streams: a text of " + std::to_string(count) + " tokens, not of 1 to " + std::to_string(longest_));
    }
    context_.model().require_tokens(tokens, "streams: ");
    context_.clear();
    const Tree root_only;
    std::vector<BatchRow> rows;
    const int width = context_.batch_size();
    for (int begin = 0; begin < count - 1; begin += width) {
        const int end = std::min(begin + width, count - 1);
        rows.clear();
        for (int i = begin; i < end; ++i) rows.push_back({tokens[i], i, sequence, false});
        if (context_.decode(rows, nullptr) != DecodeStatus::ok) throw Error("streams: the text could not be decoded");
        for (int at = std::max(begin, first); at < end; ++at) {
            DraftInput input{tokens.first(static_cast<size_t>(at) + 2), context_.tapped(at - begin), 1, root_only};
            input.row = at - begin;
            levels_->begin(input);
            on_draft(at, *levels_);
        }
    }
}

}  // namespace medusa
