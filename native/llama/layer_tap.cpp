#include "llama/layer_tap.h"

#include <string>

#include "base/common.h"
#include "ggml-backend.h"
#include "llama.h"

namespace medusa {

struct LayerTap::Hooks {
    static bool init(llama_sampler*, ggml_backend_buffer_type_t, uint32_t) { return true; }
    static const char* name(const llama_sampler*) { return "layer tap"; }
    static void apply(llama_sampler*, llama_token_data_array*) {}

    static void add(llama_sampler* sampler, ggml_context*, ggml_cgraph* graph, llama_sampler_data* data) {
        // An empty graph: libllama counts what the sampler would add.
        if (ggml_graph_n_nodes(graph) == 0) return;
        data->logits = nullptr;  // nothing is sampled
        auto* tap = static_cast<LayerTap*>(sampler->ctx);
        tap->tensor_ = ggml_graph_get_tensor(graph, ("l_out-" + std::to_string(tap->layer_)).c_str());
        if (tap->tensor_) ggml_set_output(tap->tensor_);
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

LayerTap::LayerTap(int layer, std::unique_ptr<AttentionTap> attention)
    : layer_(layer),
      attention_(std::move(attention)),
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

void LayerTap::read(int rows) {
    if (!tensor_ || tensor_->type != GGML_TYPE_F32) {
        throw Error("the state after layer " + std::to_string(layer_) +
                    " cannot be read from models of this architecture");
    }
    if (tensor_->ne[1] != rows) {
        throw Error("layer " + std::to_string(layer_) + " has " + std::to_string(tensor_->ne[1]) +
                    " rows of a batch of " + std::to_string(rows));
    }
    values_.resize(static_cast<size_t>(ggml_nelements(tensor_)));
    ggml_backend_tensor_get(tensor_, values_.data(), 0, ggml_nbytes(tensor_));
    read_ = true;
}

}  // namespace medusa
