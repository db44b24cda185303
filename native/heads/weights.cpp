#include "heads/weights.h"

#include <algorithm>

#include "heads/metadata.h"
#include "kernels/buffer_type.h"
#include "llama/backend.h"

namespace medusa {

void copy_to_backend(const GgufFile& file, const std::vector<const TensorInfo*>& parts, ggml_tensor* target) {
    constexpr uint64_t piece = 16u << 20;
    const bool whole = ggml_backend_buffer_get_type(target->buffer) == kernels::buffer_type();
    std::vector<char> bytes(whole ? ggml_nbytes(target) : 0);
    uint64_t at = 0;
    for (const TensorInfo* part : parts) {
        if (!whole) bytes.resize(std::min(piece, part->size));
        for (uint64_t done = 0; done < part->size;) {
            const uint64_t n = std::min(piece, part->size - done);
            file.read(*part, done, n, whole ? &bytes[at] : bytes.data());
            if (!whole) ggml_backend_tensor_set(target, bytes.data(), at, n);
            done += n, at += n;
        }
    }
    if (whole) ggml_backend_tensor_set(target, bytes.data(), 0, bytes.size());
}

Heads::Heads(std::shared_ptr<LlamaModel> model, const std::string& path)
    : model_(std::move(model)),
      file_(path),
      metadata_(read_heads_metadata(file_, model_->vocab_size())),
      device_(model_->output_device()),
      tensors_(most_tensors()),
      packed_(most_tensors()) {
    model_->require_states();
    blocks_.resize(head_count());
    if (metadata_.kind == HeadsKind::streams) {
        streams_ = std::make_unique<StreamWeights>(*model_, file_, metadata_, device_);
    } else if (metadata_.kind == HeadsKind::recurrent) {
        declare_cell();
    } else {
        declare_blocks();
    }
    declare_outputs();
    if (metadata_.has_prefix) declare_prefix();
    const std::string what = "the heads of " + file_.path() + " on " + ggml_backend_dev_name(device_);
    tensors_.allocate(device_, what, memory_remedy(device_));
    packed_.allocate(kernels::buffer_type(), what, memory_remedy(nullptr));
    upload();
}

size_t Heads::most_tensors() const {
    return 2 * static_cast<size_t>(head_count()) * (static_cast<size_t>(block_count()) + 1) + 2 +
           std::size(prefix_tensors) + std::size(cell_matrices);
}

std::vector<const TensorInfo*> Heads::expect_alike(const std::vector<std::string>& names,
                                                   const std::vector<int64_t>& shape) const {
    std::vector<const TensorInfo*> out;
    for (const std::string& name : names) {
        out.push_back(&expect_tensor(file_, name, shape));
        if (out.back()->type != out.front()->type) {
            throw Error(file_.path() + ": tensor " + name + " differs in type from " + names.front() +
                        ": convert the heads again");
        }
    }
    return out;
}

ggml_tensor* Heads::declare_weight(const std::string& name, ggml_type type, int64_t columns, int64_t rows) {
    const bool on_cpu = ggml_backend_dev_type(device_) == GGML_BACKEND_DEVICE_TYPE_CPU;
    const bool packed = on_cpu && model_->repacks() && kernels::serves(type, columns);
    ggml_tensor* tensor = ggml_new_tensor_2d((packed ? packed_ : tensors_).context(), type, columns, rows);
    ggml_set_name(tensor, name.c_str());
    return tensor;
}

// Vectors of `length` numbers each, one after the other.
ggml_tensor* Heads::declare_vector(const std::vector<std::string>& names, int64_t length) {
    const auto count = static_cast<int64_t>(names.size());
    ggml_tensor* tensor = ggml_new_tensor_1d(tensors_.context(), GGML_TYPE_F32, length * count);
    stacks_.push_back({tensor, expect_alike(names, {length})});
    return tensor;
}

// Matrices `names` of [columns, rows] each, stacked in one; with their biases, if they have any.
Linear Heads::declare(const std::vector<std::string>& names, int64_t columns, int64_t rows) {
    std::vector<std::string> weights, biases;
    for (const std::string& name : names) {
        weights.push_back(name + ".weight");
        biases.push_back(name + ".bias");
    }
    const auto count = static_cast<int64_t>(names.size());
    const auto parts = expect_alike(weights, {columns, rows});
    Linear out;
    out.weight = declare_weight(weights.front(), parts.front()->type, columns, rows * count);
    stacks_.push_back({out.weight, parts});
    if (std::any_of(biases.begin(), biases.end(), [&](const std::string& name) { return file_.find(name); })) {
        out.bias = declare_vector(biases, rows);
    }
    return out;
}

void Heads::declare_blocks() {
    const int64_t h = model_->embedding_size();
    const bool reads_path = metadata_.reads_path();
    std::vector<std::string> first;
    for (int head = 0; head < head_count(); ++head) {
        for (int block = 0; block < block_count(); ++block) {
            const std::string name = head_tensor(head, "block." + std::to_string(block));
            if (block > 0) {
                blocks_[head].push_back(declare({name}, h, h));
            } else if (reads_path) {
                first_.push_back(declare({name, name + ".residual"}, h * (head + 2), h));
            } else {
                first.push_back(name);
            }
        }
    }
    if (!first.empty()) first_.push_back(declare(first, h, h));
}

int64_t Heads::rows_of(const std::string& name) const {
    const TensorInfo* info = file_.find(name + ".weight");
    if (!info) throw Error(file_.path() + ": tensor " + name + ".weight is missing: convert the heads again");
    return info->ne[1];
}

void Heads::declare_prefix() {
    const auto name = [](const char* part) { return "medusa.prefix." + std::string(part); };
    const int64_t h = model_->embedding_size(), inner = rows_of(name("ffn_gate"));
    const int64_t q = rows_of(name("attn_q")), size = q / metadata_.prefix.head_count;
    const int64_t kv = size * metadata_.prefix.head_count_kv;
    if (size < 2 || size % 2 != 0 || q % metadata_.prefix.head_count != 0) {
        throw Error(file_.path() + ": tensor " + name("attn_q") + ".weight has " + std::to_string(q) + " rows, which " +
                    "do not make " + std::to_string(metadata_.prefix.head_count) +
                    " attention heads of even size: convert the heads again");
    }
    prefix_.attention_norm = declare_vector({prefix_tensor("attn_norm")}, h);
    prefix_.feed_forward_norm = declare_vector({prefix_tensor("ffn_norm")}, h);
    prefix_.output_norm = declare_vector({prefix_tensor("output_norm")}, h);
    prefix_.query = declare({name("attn_q")}, h, q);
    prefix_.key_value = declare({name("attn_k"), name("attn_v")}, h, kv);
    prefix_.output = declare({name("attn_output")}, q, h);
    prefix_.gate_up = declare({name("ffn_gate"), name("ffn_up")}, h, inner);
    prefix_.down = declare({name("ffn_down")}, inner, h);
}

void Heads::declare_cell() {
    const int64_t h = model_->embedding_size(), inner = rows_of(cell_matrix("gate"));
    cell_.residual = declare({cell_matrix("residual")}, 2 * h, h);
    cell_.gate_up = declare({cell_matrix("gate"), cell_matrix("up")}, 2 * h, inner);
    cell_.down = declare({cell_matrix("down")}, inner, h);
}

const TensorInfo& Heads::base_output_info() const {
    const TensorInfo* info = model_->file().find("output.weight");
    if (!info) info = model_->file().find("token_embd.weight");
    if (!info || info->n_dims != 2 || info->ne[0] != model_->embedding_size() || info->ne[1] != model_->vocab_size()) {
        throw Error(model_->path() + ": no output matrix of the usual shape in this file (split models: join them)");
    }
    return *info;
}

void Heads::declare_outputs() {
    const int64_t h = model_->embedding_size(), rows = output_rows();
    own_outputs_ = metadata_.lm_head == LmHead::own || file_.find(head_tensor(0, "output.weight"));
    if (own_outputs_) {
        for (int head = 0; head < head_count(); ++head) {
            outputs_.push_back(declare({head_tensor(head, "output")}, h, rows));
        }
        return;
    }
    Linear shared;
    if (file_.find("medusa.output.weight")) {
        const auto parts = expect_alike({"medusa.output.weight"}, {h, rows});
        shared.weight = declare_weight("medusa.output.weight", parts.front()->type, h, rows);
        stacks_.push_back({shared.weight, parts});
    } else {
        // The base's own matrix, if it can be reached where it lies.
        if (metadata_.lm_head == LmHead::base) shared.weight = model_->output_tensor();
        if (!shared.weight) {
            shared.weight = rows_of_base_ = declare_weight("medusa.output.weight", base_output_info().type, h, rows);
        }
    }
    outputs_.push_back(shared);
}

void Heads::upload() {
    for (const auto& [tensor, parts] : stacks_) copy_to_backend(file_, parts, tensor);
    if (rows_of_base_) upload_rows_of_base();
}

void Heads::upload_rows_of_base() {
    const TensorInfo& source = base_output_info();
    const size_t row_size = ggml_row_size(source.type, source.ne[0]);
    std::vector<char> rows(row_size * output_rows());
    for (int row = 0; row < output_rows(); ++row) {
        model_->file().read(source, row_size * static_cast<uint64_t>(token(row)), row_size, &rows[row * row_size]);
    }
    ggml_backend_tensor_set(rows_of_base_, rows.data(), 0, rows.size());
}

uint64_t Heads::size_bytes() const {
    return tensors_.size_bytes() + packed_.size_bytes() + (streams_ ? streams_->size_bytes() : 0);
}

}  // namespace medusa
