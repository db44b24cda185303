#include "heads/stream_weights.h"

#include <algorithm>
#include <cmath>

#include "base/quantize.h"
#include "heads/metadata.h"
#include "kernels/buffer_type.h"
#include "llama/backend.h"

namespace medusa {
namespace {

// The architectures whose layers are built here: norm, attention, norm, gated SiLU.
constexpr const char* architectures[] = {"llama", "qwen2", "qwen3"};

constexpr const char* known_parts[] = {
    "attn_norm.weight", "attn_q.weight",   "attn_q.bias",        "attn_k.weight",      "attn_k.bias",
    "attn_v.weight",    "attn_v.bias",     "attn_q_norm.weight", "attn_k_norm.weight", "attn_output.weight",
    "attn_output.bias", "ffn_norm.weight", "ffn_gate.weight",    "ffn_up.weight",      "ffn_down.weight"};

constexpr float largest_half = 65504.0f;
constexpr size_t width_step = 32;
constexpr size_t tensors_per_layer = 8;  // of adapters

template <typename Range>
bool holds(const Range& range, const std::string& value) {
    return std::find(std::begin(range), std::end(range), value) != std::end(range);
}

std::string block(int number, const std::string& rest) {
    return "blk." + std::to_string(number) + "." + rest;
}

std::vector<float> transposed(const std::vector<float>& rows, size_t columns) {
    const size_t count = rows.size() / columns;
    std::vector<float> out(rows.size());
    for (size_t row = 0; row < count; ++row) {
        for (size_t column = 0; column < columns; ++column) out[column * count + row] = rows[row * columns + column];
    }
    return out;
}

}  // namespace

StreamWeights::StreamWeights(const LlamaModel& model, const GgufFile& file, const HeadsMetadata& metadata,
                             ggml_backend_dev_t device)
    : model_(model),
      file_(file),
      params_(metadata.streams),
      device_(device),
      base_(model.tensors()),
      tensors_(tensors_per_layer * static_cast<size_t>(params_.layers)),
      packed_(tensors_per_layer * static_cast<size_t>(params_.layers)) {
    const int64_t h = model.embedding_size();
    find_layers();
    find_output_norm();
    embeddings_ = numbers(stream_embedding, {h, metadata.head_count});
    if (params_.root && params_.root_rank > 0) {
        root_a_ = transposed(numbers(stream_root_a, {h, params_.root_rank}), static_cast<size_t>(h));
        root_b_ = transposed(numbers(stream_root_b, {params_.root_rank, h}), static_cast<size_t>(params_.root_rank));
    } else if (params_.root) {
        root_scale_ = numbers(stream_root_scale, {h});
    }
    if (params_.rank > 0) load_adapters();
}

void StreamWeights::add_root(std::span<const float> token, std::span<float> state) const {
    if (!root_scale_.empty()) {
        for (size_t i = 0; i < state.size(); ++i) state[i] += root_scale_[i] * token[i];
        return;
    }
    const auto rank = static_cast<size_t>(params_.root_rank), h = token.size();
    std::vector<float> narrow(rank);
    for (size_t i = 0; i < h; ++i) {
        for (size_t r = 0; r < rank; ++r) narrow[r] += root_a_[i * rank + r] * token[i];
    }
    for (size_t r = 0; r < rank; ++r) {
        for (size_t i = 0; i < h; ++i) state[i] += root_b_[r * h + i] * narrow[r];
    }
}

void StreamWeights::load_adapters() {
    for (int layer = 0; layer < params_.layers; ++layer) declare_adapters(layer);
    const std::string what = "the adapters of " + file_.path() + " on " + ggml_backend_dev_name(device_);
    tensors_.allocate(device_, what, memory_remedy(device_));
    packed_.allocate(kernels::buffer_type(), what, memory_remedy(nullptr));
    for (const auto& [tensor, bytes] : uploads_) ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
    uploads_.clear();
}

void StreamWeights::find_layers() {
    const std::string architecture = model_.architecture();
    if (!holds(architectures, architecture)) {
        throw Error(
            file_.path() + ": streams run through layers of llama, qwen2 and qwen3 models, not of " + architecture,
            "run with {no_spec}");
    }
    const int layers = model_.layer_count();
    if (params_.first_layer + params_.layers != layers) {
        throw Error(file_.path() + ": streams of layers " + std::to_string(params_.first_layer) + " to " +
                    std::to_string(params_.first_layer + params_.layers - 1) + ", this base has " +
                    std::to_string(layers) + " layers: these heads are for another base");
    }
    if (base_.empty()) {
        throw Error(file_.path() + ": streams need the base's own weights, which this build of llama.cpp does not show",
                    "run with {no_spec}");
    }
    for (int number = params_.first_layer; number < layers; ++number) {
        check_names(number);
        layers_.push_back(layer_of_base(number));
    }
}

// A tensor that is not read would mean a layer that computes something else.
void StreamWeights::check_names(int number) const {
    const std::string prefix = block(number, "");
    for (const auto& [name, tensor] : base_) {
        if (name.starts_with(prefix) && !holds(known_parts, name.substr(prefix.size()))) {
            throw Error(model_.path() + ": streams cannot run through layers with a tensor " + name,
                        "run with {no_spec}");
        }
    }
}

ggml_tensor* StreamWeights::base_tensor(const std::string& name, bool wanted) const {
    const auto found = std::find_if(base_.begin(), base_.end(), [&](const auto& item) { return item.first == name; });
    if (found != base_.end()) return found->second;
    if (!wanted) return nullptr;
    throw Error(model_.path() + ": streams need a tensor " + name + ", which this base lacks", "run with {no_spec}");
}

Linear StreamWeights::base_matrix(int number, const std::string& name) const {
    return {base_tensor(block(number, name + ".weight"), true), base_tensor(block(number, name + ".bias"), false)};
}

StreamLayer StreamWeights::layer_of_base(int number) const {
    StreamLayer out;
    out.attention_norm = base_tensor(block(number, "attn_norm.weight"), true);
    out.feed_forward_norm = base_tensor(block(number, "ffn_norm.weight"), true);
    out.query_norm = base_tensor(block(number, "attn_q_norm.weight"), false);
    out.key_norm = base_tensor(block(number, "attn_k_norm.weight"), false);
    out.query = base_matrix(number, "attn_q");
    out.key = base_matrix(number, "attn_k");
    out.value = base_matrix(number, "attn_v");
    out.output = base_matrix(number, "attn_output");
    out.gate = base_matrix(number, "ffn_gate");
    out.up = base_matrix(number, "ffn_up");
    out.down = base_matrix(number, "ffn_down");
    return out;
}

void StreamWeights::find_output_norm() {
    output_norm_ = base_tensor("output_norm.weight", true);
    const std::string key = model_.architecture() + ".attention.layer_norm_rms_epsilon";
    const auto eps = model_.file().get_f32(key.c_str());
    if (!eps) throw Error(model_.path() + ": it has no " + key, "run with {no_spec}");
    norm_eps_ = *eps;
}

std::vector<float> StreamWeights::numbers(const std::string& name, const std::vector<int64_t>& shape) const {
    const TensorInfo& info = expect_tensor(file_, name, shape);
    if (info.type != GGML_TYPE_F32 && !ggml_get_type_traits(info.type)->to_float) {
        throw Error(file_.path() + ": tensor " + name + " has type " + ggml_type_name(info.type) +
                    ", which cannot be read: train the streams again");
    }
    std::vector<char> bytes(info.size);
    file_.read(info, 0, info.size, bytes.data());
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float> out(static_cast<size_t>(count));
    to_floats(info.type, bytes.data(), out);
    if (!std::all_of(out.begin(), out.end(), [](float value) { return std::isfinite(value); })) {
        throw Error(file_.path() + ": tensor " + name + " holds values that are not numbers: train the streams again");
    }
    return out;
}

void StreamWeights::declare_adapters(int layer) {
    StreamLayer& target = layers_[static_cast<size_t>(layer)];
    target.query_key_value = declare_adapter(layer, {"attn_q", "attn_k", "attn_v"});
    target.to_output = declare_adapter(layer, {"attn_output"});
    target.gate_up = declare_adapter(layer, {"ffn_gate", "ffn_up"});
    target.to_down = declare_adapter(layer, {"ffn_down"});
}

// The factors of all matrices in two: each a below the other, each b along the diagonal, times alpha / rank, padded
// with zeros to a width that the kernels take. One product with some zeros is quicker than several small ones.
Adapter StreamWeights::declare_adapter(int layer, const std::vector<std::string>& matrices) {
    const auto rank = static_cast<size_t>(params_.rank);
    const size_t width = (rank * matrices.size() + width_step - 1) / width_step * width_step;
    const float scale = params_.alpha / static_cast<float>(params_.rank);
    std::vector<float> all_a, all_b;
    int64_t inputs = 0;
    for (size_t i = 0; i < matrices.size(); ++i) {
        const ggml_tensor* weight = base_matrix(params_.first_layer + layer, matrices[i]).weight;
        inputs = weight->ne[0];
        const auto a = numbers(stream_adapter(layer, matrices[i], "lora_a"), {inputs, params_.rank});
        const auto b = numbers(stream_adapter(layer, matrices[i], "lora_b"), {params_.rank, weight->ne[1]});
        all_a.insert(all_a.end(), a.begin(), a.end());
        const size_t first = all_b.size();
        all_b.resize(first + static_cast<size_t>(weight->ne[1]) * width);
        for (size_t at = 0; at < b.size(); ++at) {
            all_b[first + at / rank * width + i * rank + at % rank] = scale * b[at];
        }
    }
    all_a.resize(static_cast<size_t>(inputs) * width);
    const auto name = [&](const char* part) { return stream_adapter(layer, matrices.front(), part); };
    return {declare(name("lora_a"), all_a, inputs), declare(name("lora_b"), all_b, static_cast<int64_t>(width))};
}

// In 8 bits where the kernels take them, which halves what a draft reads.
ggml_tensor* StreamWeights::declare(const std::string& name, const std::vector<float>& values, int64_t columns) {
    for (const float value : values) {
        if (!(std::abs(value) <= largest_half)) {
            throw Error(file_.path() + ": tensor " + name +
                        " holds values that are too large: train the streams again");
        }
    }
    const int64_t rows = static_cast<int64_t>(values.size()) / columns;
    const bool on_cpu = ggml_backend_dev_type(device_) == GGML_BACKEND_DEVICE_TYPE_CPU;
    const bool packed = on_cpu && model_.repacks() && kernels::serves(GGML_TYPE_Q8_0, columns);
    const ggml_type type = packed ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    ggml_tensor* tensor = ggml_new_tensor_2d((packed ? packed_ : tensors_).context(), type, columns, rows);
    ggml_set_name(tensor, name.c_str());
    uploads_.push_back({tensor, quantize_rows(ggml_type_name(type), values, columns)});
    return tensor;
}

std::span<const float> StreamWeights::embedding(int stream) const {
    const auto h = static_cast<size_t>(model_.embedding_size());
    return std::span(embeddings_).subspan(static_cast<size_t>(stream) * h, h);
}

uint64_t StreamWeights::size_bytes() const {
    return tensors_.size_bytes() + packed_.size_bytes() +
           (embeddings_.size() + root_scale_.size() + root_a_.size() + root_b_.size()) * sizeof(float);
}

}  // namespace medusa
