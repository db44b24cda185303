#include "heads/token_embeddings.h"

#include "base/quantize.h"

namespace medusa {

TokenEmbeddings::TokenEmbeddings(const LlamaModel& model, float scale)
    : model_(model), scale_(scale), info_(model.file().find("token_embd.weight")) {
    const bool usual =
        info_ && info_->n_dims == 2 && info_->ne[0] == model.embedding_size() && info_->ne[1] == model.vocab_size();
    if (!usual || (info_->type != GGML_TYPE_F32 && !ggml_get_type_traits(info_->type)->to_float)) {
        throw Error(model.path() + ": no token embeddings of the usual shape in this file, which these heads read",
                    "run with {no_spec}");
    }
    // A matrix that is also used for products may have a second copy of the same name in a layout of its kernels.
    for (const auto& [name, tensor] : model.tensors()) {
        if (name == "token_embd.weight" && tensor->type == info_->type && tensor->buffer &&
            ggml_backend_buffer_is_host(tensor->buffer)) {
            loaded_ = static_cast<const char*>(tensor->data);
        }
    }
    bytes_.resize(ggml_row_size(info_->type, info_->ne[0]));
}

void TokenEmbeddings::row(Token token, std::span<float> out) {
    const uint64_t offset = static_cast<uint64_t>(token) * bytes_.size();
    const char* source = bytes_.data();
    if (loaded_) {
        source = loaded_ + offset;
    } else {
        model_.file().read(*info_, offset, bytes_.size(), bytes_.data());
    }
    to_floats(info_->type, source, out);
    if (scale_ != 1.0f) {
        for (float& value : out) value *= scale_;
    }
}

}  // namespace medusa
