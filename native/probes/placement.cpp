#include "probes/placement.h"
#include "llama/context.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace medusa {
namespace {

constexpr const char* embedding_name = "token_embd.weight";
constexpr const char* layer_embedding_name = "per_layer_token_embd.weight";  // Gemma 3n and 4: one per layer

const char* buffer_name(const ggml_tensor* tensor) {
    return tensor->buffer ? ggml_backend_buft_name(ggml_backend_buffer_get_type(tensor->buffer)) : "none";
}

// Where products with a weight run. A pinned host buffer belongs to a GPU's device, but the CPU reads it.
ggml_backend_dev_t device_of(const ggml_tensor* tensor) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!tensor->buffer || ggml_backend_buffer_is_host(tensor->buffer)) return cpu;
    const auto device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
    return device ? device : cpu;
}

template <typename Tensors>
bool embedding_is_only_looked_up(const Tensors& tensors) {
    const auto named = [&](const char* wanted) {
        return std::count_if(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first == wanted; });
    };
    return named("output.weight") > 0 || named(embedding_name) > 1;
}

// An embedding matrix that is also the output matrix stays one tensor, or becomes two of the same name: the copy that
// the processor can read is used for lookups, the other one for products.
Role role_of(const std::string& name, const ggml_tensor* tensor, bool looked_up) {
    if (name == embedding_name) {
        const bool readable = tensor->buffer && ggml_backend_buffer_is_host(tensor->buffer);
        return looked_up && readable ? Role::embedding : Role::matrix;
    }
    if (name == layer_embedding_name) return Role::embedding;
    if (name.find("conv") != std::string::npos) return Role::other;  // short convolutions of recurrent layers
    if (!name.ends_with(".weight") || ggml_n_dims(tensor) < 2) return Role::other;
    return ggml_n_dims(tensor) == 2 ? Role::matrix : Role::experts;
}

}  // namespace

const char* role_name(Role role) {
    constexpr const char* names[] = {"matrix", "experts", "embedding", "other"};
    return names[static_cast<size_t>(role)];
}

std::vector<DeviceUse> devices_of(const LlamaModel& model) {
    std::map<ggml_backend_dev_t, DeviceUse> uses;
    std::map<std::string, ggml_backend_dev_t> layers;  // "blk.0." and where it lies
    const ggml_tensor* output = model.output_tensor();
    for (const auto& [name, tensor] : model.tensors()) {
        const auto device = device_of(tensor);
        DeviceUse& use = uses[device];
        use.bytes += ggml_nbytes(tensor);
        use.output = use.output || tensor == output;
        if (!name.starts_with("blk.") || ggml_n_dims(tensor) < 2) continue;
        if (layers.emplace(name.substr(0, name.find('.', 4) + 1), device).second) ++use.layers;
    }
    std::vector<DeviceUse> out;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        const auto found = uses.find(ggml_backend_dev_get(i));
        if (found == uses.end()) continue;
        found->second.name = ggml_backend_dev_name(found->first);
        out.push_back(found->second);
    }
    return out;
}

std::vector<ggml_tensor*> matrices_of(const LlamaModel& model, const std::string& type) {
    const auto tensors = model.tensors();
    const bool looked_up = embedding_is_only_looked_up(tensors);
    std::vector<ggml_tensor*> out;
    for (const auto& [name, tensor] : tensors) {
        if (type != ggml_type_name(tensor->type) || role_of(name, tensor, looked_up) != Role::matrix) continue;
        if (tensor->buffer && device_of(tensor) == ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
            out.push_back(tensor);
        }
    }
    return out;
}

kernels::AttentionUse attention_of(std::shared_ptr<LlamaModel> model, ggml_type type_k, ggml_type type_v) {
    ContextParams params;
    params.type_k = type_k;
    params.type_v = type_v;
    LlamaContext context(std::move(model), params);
    constexpr int sequence[] = {0};
    const BatchRow row{0, 0, sequence, true};
    kernels::take_attention_use();
    if (context.decode({&row, 1}, nullptr) != DecodeStatus::ok) throw Error("one token could not be decoded");
    return kernels::take_attention_use();
}

const char* draft_memory_of(std::shared_ptr<LlamaModel> model) {
    if (!model->can_draft()) return "none";
    if (!model->is_recurrent()) return "cells";
    ContextParams params;
    params.snapshots = 1;
    return LlamaContext(std::move(model), params).snapshots() > 0 ? "snapshots" : "copies";
}

std::vector<Placement> placement_of(const LlamaModel& model) {
    const auto tensors = model.tensors();
    const bool looked_up = embedding_is_only_looked_up(tensors);
    std::map<std::tuple<Role, std::string, std::string>, Placement> groups;
    for (const auto& [name, tensor] : tensors) {
        const Role role = role_of(name, tensor, looked_up);
        const std::string type = ggml_type_name(tensor->type), buffer = buffer_name(tensor);
        Placement& group = groups.try_emplace({role, type, buffer}, Placement{role, type, buffer}).first->second;
        ++group.tensors;
        group.bytes += ggml_nbytes(tensor);
    }
    std::vector<Placement> out;
    for (auto& [key, group] : groups) out.push_back(std::move(group));
    std::stable_sort(out.begin(), out.end(), [](const Placement& a, const Placement& b) {
        return a.role != b.role ? a.role < b.role : a.bytes > b.bytes;
    });
    return out;
}

}  // namespace medusa
