#include "in_graph/device_embeddings.h"

#include <algorithm>
#include <vector>

namespace medusa::in_graph {

DeviceEmbeddings::DeviceEmbeddings(const Heads& heads) : scale_(heads.metadata().embedding_scale) {
    const LlamaModel& model = heads.model();
    const TensorInfo* info = model.file().find("token_embd.weight");
    if (!info || info->n_dims != 2 || info->ne[0] != model.embedding_size() || info->ne[1] != model.vocab_size()) {
        throw Error(model.path() + ": no token embeddings of the usual shape in this file");
    }
    for (const auto& [name, tensor] : model.tensors()) {
        if (name != "token_embd.weight" || tensor->type != info->type || !tensor->buffer) continue;
        const auto type = ggml_backend_buffer_get_type(tensor->buffer);
        if (type == ggml_backend_dev_buffer_type(heads.device())) matrix_ = tensor;
    }
    if (!matrix_) copy(heads, *info);
}

void DeviceEmbeddings::copy(const Heads& heads, const TensorInfo& info) {
    constexpr uint64_t piece = 16u << 20;
    context_.reset(ggml_init({ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    matrix_ = ggml_new_tensor_2d(context_.get(), info.type, info.ne[0], info.ne[1]);
    buffer_.reset(
        ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(heads.device())));
    if (!buffer_) throw OutOfMemory("no memory for a copy of the token embeddings on the device");
    std::vector<char> bytes(std::min(piece, info.size));
    for (uint64_t done = 0; done < info.size;) {
        const uint64_t n = std::min(piece, info.size - done);
        heads.model().file().read(info, done, n, bytes.data());
        ggml_backend_tensor_set(matrix_, bytes.data(), done, n);
        done += n;
    }
}

ggml_tensor* DeviceEmbeddings::rows(ggml_context* c, ggml_tensor* tokens) const {
    ggml_tensor* found = ggml_get_rows(c, matrix_, tokens);
    return scale_ == 1.0f ? found : ggml_scale(c, found, scale_);
}

}  // namespace medusa::in_graph
