#include "llama/layer_tap.h"

#include <cstring>
#include <string>

#include "base/common.h"
#include "ggml-backend.h"
#include "llama.h"

namespace medusa {
namespace {

template <typename T>
T parameter(const ggml_tensor* op, int i) {
    T value;
    std::memcpy(&value, op->op_params + i, sizeof(value));
    return value;
}

// The operator that views and copies come from.
const ggml_tensor* origin(const ggml_tensor* tensor) {
    while (tensor && (tensor->op == GGML_OP_VIEW || tensor->op == GGML_OP_PERMUTE || tensor->op == GGML_OP_RESHAPE ||
                      tensor->op == GGML_OP_CONT)) {
        tensor = tensor->src[0];
    }
    return tensor;
}

Rotary rotary_of(const ggml_tensor* rope) {
    Rotary out;
    out.size = parameter<int32_t>(rope, 1);
    out.mode = parameter<int32_t>(rope, 2);
    out.trained_context = parameter<int32_t>(rope, 4);
    out.base = parameter<float>(rope, 5);
    out.scale = parameter<float>(rope, 6);
    out.extrapolation = parameter<float>(rope, 7);
    out.magnitude = parameter<float>(rope, 8);
    out.beta_fast = parameter<float>(rope, 9);
    out.beta_slow = parameter<float>(rope, 10);
    out.factors = rope->src[2];
    return out;
}

// One row per cell, heads side by side.
bool is_cache(const ggml_tensor* seen, int64_t size, int64_t heads) {
    const ggml_tensor* cache = seen->view_src;
    return cache && seen->type == GGML_TYPE_F16 && cache->ne[0] == size * heads && cache->ne[2] == 1 &&
           ggml_is_contiguous(cache) && seen->ne[0] == size && seen->ne[2] == heads && seen->ne[3] == 1 &&
           seen->nb[1] == cache->nb[1];
}

}  // namespace

AttentionTap::AttentionTap(int first, int count) : first_(first), count_(static_cast<size_t>(count)) {}

int64_t AttentionTap::cells() const {
    return layers_.empty() ? 0 : layers_.front().keys->ne[1];
}

void AttentionTap::read(ggml_cgraph* graph) {
    mask_ = nullptr;
    lacks_.clear();
    std::vector<bool> found(count_, false);
    for (int i = 0; i < ggml_graph_n_nodes(graph) && lacks_.empty(); ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        if (node->op != GGML_OP_FLASH_ATTN_EXT || !node->src[1]->view_src) continue;
        const std::string cache = node->src[1]->view_src->name;
        for (size_t layer = 0; layer < count_; ++layer) {
            if (cache != "cache_k_l" + std::to_string(first_ + static_cast<int>(layer))) continue;
            found[layer] = true;
            lacks_ = read_layer(node, layer);
        }
    }
    for (size_t layer = 0; layer < count_ && lacks_.empty(); ++layer) {
        if (!found[layer]) {
            lacks_ = "layer " + std::to_string(first_ + static_cast<int>(layer)) + " has no fused attention over an " +
                     "F16 cache";
        }
    }
    if (lacks_.empty()) ggml_set_output(mask_);
}

// What is wrong with it; empty: nothing.
std::string AttentionTap::read_layer(const ggml_tensor* attention, size_t layer) {
    const ggml_tensor *q = attention->src[0], *k = attention->src[1], *v = attention->src[2], *rope = origin(q);
    ggml_tensor* mask = attention->src[3];
    if (!is_cache(k, k->ne[0], k->ne[2]) || !is_cache(v, v->ne[0], k->ne[2])) {
        return "its keys and values are not an F16 cache, cell by cell";
    }
    if (parameter<float>(attention, 1) != 0 || parameter<float>(attention, 2) != 0 || attention->src[4]) {
        return "its attention has sinks, a soft cap or a bias of positions";
    }
    if (!mask || mask->type != GGML_TYPE_F16 || mask->ne[2] != 1 || mask->ne[3] != 1 || (mask_ && mask != mask_)) {
        return "its layers do not see the same cells (sliding windows)";
    }
    if (!rope || rope->op != GGML_OP_ROPE || (rope->op_params[2] & GGML_ROPE_TYPE_MROPE) || rope->op_params[15] != 0) {
        return "its queries are not what rotary embedding gives";
    }
    mask_ = mask;
    LayerAttention now;
    now.keys = k->view_src, now.values = v->view_src;
    now.heads = q->ne[2], now.key_heads = k->ne[2], now.key_size = k->ne[0], now.value_size = v->ne[0];
    now.scale = parameter<float>(attention, 0);
    now.rotary = rotary_of(rope);
    layers_.resize(count_);
    if (layers_[layer].keys && layers_[layer] != now) return "its cache has moved";
    layers_[layer] = now;
    return "";
}

int AttentionTap::seen_by(int row, std::vector<char>& out) const {
    if (!lacks_.empty() || row < 0 || row >= mask_->ne[1]) {
        throw Error("the cells that were seen are not known: this is a bug in medusa");
    }
    std::vector<ggml_fp16_t> values(static_cast<size_t>(mask_->ne[0]));
    ggml_backend_tensor_get(mask_, values.data(), static_cast<size_t>(row) * mask_->nb[1],
                            values.size() * sizeof(ggml_fp16_t));
    constexpr ggml_fp16_t hidden = 0xFC00;  // minus infinity
    out.assign(static_cast<size_t>(cells()), 0);
    int count = 0;
    for (size_t cell = 0; cell < values.size(); ++cell) {
        if (values[cell] == hidden) continue;
        if (values[cell] != 0)
            throw Error("the attention mask has weights, which streams do not support", "use {no_spec}");
        out[cell] = 1;
        ++count;
    }
    return count;
}

struct LayerTap::Hooks {
    static bool init(llama_sampler*, ggml_backend_buffer_type_t, uint32_t) { return true; }
    static const char* name(const llama_sampler*) { return "layer tap"; }
    static void apply(llama_sampler*, llama_token_data_array*) {}

    static void add(llama_sampler* sampler, ggml_context*, ggml_cgraph* graph, llama_sampler_data* data) {
        // An empty graph: libllama is counting what the sampler would add.
        if (ggml_graph_n_nodes(graph) == 0) return;
        data->logits = nullptr;  // nothing is sampled
        auto* tap = static_cast<LayerTap*>(sampler->ctx);
        for (size_t i = 0; i < tap->layers_.size(); ++i) {
            tap->tensors_[i] = ggml_graph_get_tensor(graph, ("l_out-" + std::to_string(tap->layers_[i])).c_str());
            if (tap->tensors_[i]) ggml_set_output(tap->tensors_[i]);
        }
        if (tap->attention_) tap->attention_->read(graph);
    }

    inline static llama_sampler_i table = {
        .name = name,
        .accept = nullptr,
        .apply = apply,
        .reset = nullptr,
        .clone = nullptr,
        .free = nullptr,
        .backend_init = init,
        .backend_accept = nullptr,
        .backend_apply = add,
        .backend_set_input = nullptr,
        .backend_reset = nullptr,
        .copy_state = nullptr,
    };
};

LayerTap::LayerTap(std::vector<int> layers, std::unique_ptr<AttentionTap> attention)
    : layers_(std::move(layers)),
      attention_(std::move(attention)),
      tensors_(layers_.size(), nullptr),
      chain_(llama_sampler_chain_init(llama_sampler_chain_default_params())) {
    llama_sampler_chain_add(chain_, llama_sampler_init(&Hooks::table, this));
}

LayerTap::~LayerTap() {
    llama_sampler_free(chain_);
}

std::span<const float> LayerTap::row(int row, int rows) {
    if (!read_) read(rows);
    const size_t width = values_.size() / static_cast<size_t>(rows);
    return std::span<const float>(values_).subspan(static_cast<size_t>(row) * width, width);
}

void LayerTap::check(size_t layer, int rows) const {
    const ggml_tensor* tensor = tensors_[layer];
    const std::string name = std::to_string(layers_[layer]);
    if (!tensor || tensor->type != GGML_TYPE_F32) {
        throw Error("the state after layer " + name + " cannot be read from models of this architecture");
    }
    if (tensor->ne[1] != rows) {
        throw Error("layer " + name + " has " + std::to_string(tensor->ne[1]) + " rows of a batch of " +
                    std::to_string(rows));
    }
}

void LayerTap::read(int rows) {
    size_t width = 0;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
        check(layer, rows);
        width += static_cast<size_t>(tensors_[layer]->ne[0]);
    }
    values_.resize(width * static_cast<size_t>(rows));
    size_t at = 0;
    for (const ggml_tensor* tensor : tensors_) {
        const size_t row = static_cast<size_t>(tensor->ne[0]) * sizeof(float);
        ggml_backend_tensor_get_2d(tensor, values_.data() + at, 0, row, static_cast<size_t>(rows), tensor->nb[1],
                                   width * sizeof(float));
        at += static_cast<size_t>(tensor->ne[0]);
    }
    read_ = true;
}

}  // namespace medusa
