#include "heads.h"

#include <algorithm>
#include <numeric>

#include "kernels/buffer_type.h"

namespace medusa {
namespace {

constexpr int max_heads = 32;
constexpr int max_blocks = 16;

std::string shape_text(const int64_t* ne, size_t dims) {
    std::string out = "[";
    for (size_t i = 0; i < dims; ++i) out += (i ? ", " : "") + std::to_string(ne[i]);
    return out + "]";
}

std::string head_name(int head, const std::string& rest) {
    return "medusa." + std::to_string(head) + "." + rest;
}

// Tensor memory is written in pieces, so that a large lm_head is never held twice; packed weights in one.
void copy_to_backend(const GgufFile& file, const TensorInfo& info, ggml_tensor* target, size_t target_offset) {
    const bool whole = ggml_backend_buffer_get_type(target->buffer) == kernels::buffer_type();
    const uint64_t piece = whole ? info.size : 16u << 20;
    std::vector<char> bytes(std::min(info.size, piece));
    for (uint64_t done = 0; done < info.size; done += bytes.size()) {
        const uint64_t n = std::min<uint64_t>(bytes.size(), info.size - done);
        file.read(info, done, n, bytes.data());
        ggml_backend_tensor_set(target, bytes.data(), target_offset + done, n);
    }
}

}  // namespace

Heads::Heads(std::shared_ptr<LlamaModel> model, const std::string& path)
    : model_(std::move(model)), file_(path), device_(model_->output_device()) {
    read_metadata();
    read_tree();
    if (lm_head_ == LmHead::draft_vocab) read_draft_vocabulary();
    check_tensor_names();
    const size_t tensors = 2 * static_cast<size_t>(block_count_) + 2;
    context_.reset(ggml_init({tensors * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    output_context_.reset(ggml_init({2 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    declare_blocks();
    declare_output();
    allocate();
    upload();
}

void Heads::allocate() {
    const auto place = [&](ggml_context* context, ggml_backend_buffer_type_t type) {
        ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context, type));
        if (!buffer && ggml_get_first_tensor(context)) {
            throw Error("no memory for the heads of " + file_.path() + " on " + ggml_backend_dev_name(device_) +
                        ": lower -ngl");
        }
        return buffer;
    };
    ggml_backend_buffer_type_t usual = ggml_backend_dev_buffer_type(device_);
    const bool packed = ggml_backend_dev_type(device_) == GGML_BACKEND_DEVICE_TYPE_CPU && !output_per_head_ &&
                        kernels::serves(output_->type, output_->ne[0], output_->ne[1]);
    buffer_ = place(context_.get(), usual);
    output_buffer_ = place(output_context_.get(), packed ? kernels::buffer_type() : usual);
}

void Heads::read_metadata() {
    const std::string& path = file_.path();
    const auto version = file_.get_u32("medusa.version");
    if (!version) throw Error(path + " holds no draft heads: train or convert some, or run with --no-spec");
    if (*version != 1) {
        throw Error(path + ": heads of format version " + std::to_string(*version) + ", 1 is known: update medusa");
    }
    kind_ = file_.get_string("medusa.kind").value_or("");
    if (kind_ != "medusa") {
        throw Error(path + ": heads of kind '" + kind_ + "' cannot run yet, 'medusa' can: run with --no-spec");
    }
    const auto count = [&](const char* key, int lowest, int highest) {
        const uint32_t value = file_.get_u32(key).value_or(0);
        if (value < static_cast<uint32_t>(lowest) || value > static_cast<uint32_t>(highest)) {
            throw Error(path + ": " + key + " is " + std::to_string(value) + ", not within " + std::to_string(lowest) +
                        ".." + std::to_string(highest) + ": convert the heads again");
        }
        return static_cast<int>(value);
    };
    head_count_ = count("medusa.head_count", 1, max_heads);
    block_count_ = count("medusa.block_count", 0, max_blocks);
    const std::string lm_head = file_.get_string("medusa.lm_head").value_or("own");
    if (lm_head == "own") {
        lm_head_ = LmHead::own;
    } else if (lm_head == "base") {
        lm_head_ = LmHead::base;
    } else if (lm_head == "draft_vocab") {
        lm_head_ = LmHead::draft_vocab;
    } else {
        throw Error(path + ": medusa.lm_head is '" + lm_head + "', not own, base or draft_vocab");
    }
    if (file_.get_string("medusa.input").value_or("post_norm") != "post_norm" ||
        file_.get_u32("medusa.input_layer_offset").value_or(0) != 0) {
        throw Error(path + ": these heads read another hidden state than the last one after the norm: not supported");
    }
    output_rows_ = model_->vocab_size();
    const auto accuracy = file_.get_f32_array("medusa.accuracy");
    const size_t ranks = file_.get_u32("medusa.accuracy_ranks").value_or(0);
    if (accuracy.empty()) return;
    if (accuracy.size() != ranks * head_count_) throw Error(path + ": medusa.accuracy is not head_count x ranks long");
    for (int head = 0; head < head_count_; ++head) {
        accuracy_.emplace_back(accuracy.begin() + head * ranks, accuracy.begin() + (head + 1) * ranks);
    }
}

void Heads::read_tree() {
    const auto flat = file_.get_i32_array("medusa.tree");
    for (size_t i = 0; i < flat.size();) {
        const int32_t length = flat[i++];
        if (length < 1 || static_cast<size_t>(length) > flat.size() - i) {
            throw Error(file_.path() + ": medusa.tree is damaged: convert the heads again");
        }
        tree_.emplace_back(flat.begin() + i, flat.begin() + i + length);
        i += length;
    }
    Tree checked(tree_);
}

void Heads::read_draft_vocabulary() {
    const TensorInfo* map = file_.find("medusa.d2t");
    if (!map) throw Error(file_.path() + ": tensor medusa.d2t is missing: convert the heads again");
    if (map->type != GGML_TYPE_I32 || map->n_dims != 1 || map->ne[0] < 1 || map->ne[0] > model_->vocab_size()) {
        throw Error(file_.path() + ": medusa.d2t has " + std::to_string(map->ne[0]) + " entries of type " +
                    ggml_type_name(map->type) + ", the base's vocabulary has " + std::to_string(model_->vocab_size()) +
                    ": these heads are for another base");
    }
    d2t_.resize(map->ne[0]);
    file_.read(*map, 0, map->size, d2t_.data());
    std::vector<bool> seen(model_->vocab_size(), false);
    for (const Token token : d2t_) {
        if (token < 0 || token >= model_->vocab_size() || seen[token]) {
            throw Error(file_.path() + ": medusa.d2t names token " + std::to_string(token) +
                        " twice or outside the base's vocabulary of " + std::to_string(model_->vocab_size()) +
                        ": these heads are for another base");
        }
        seen[token] = true;
    }
    output_rows_ = static_cast<int>(d2t_.size());
}

void Heads::check_tensor_names() const {
    for (const TensorInfo& info : file_.tensors()) {
        if (!info.name.starts_with("medusa.") || info.name == base_header_tensor) continue;
        if (info.name == "medusa.d2t" || info.name == "medusa.output.weight") continue;
        int head = -1, block = -1, length = 0;
        const char* name = info.name.c_str();
        const auto matches = [&](int fields, int wanted) {
            return fields == wanted && length == static_cast<int>(info.name.size()) && head < head_count_;
        };
        if (matches(std::sscanf(name, "medusa.%d.block.%d.weight%n", &head, &block, &length), 2) ||
            matches(std::sscanf(name, "medusa.%d.block.%d.bias%n", &head, &block, &length), 2)) {
            if (block < block_count_) continue;
        }
        if (matches(std::sscanf(name, "medusa.%d.output.weight%n", &head, &length), 1) ||
            matches(std::sscanf(name, "medusa.%d.output.bias%n", &head, &length), 1)) {
            if (lm_head_ != LmHead::base) continue;
        }
        throw Error(file_.path() + ": tensor " + info.name + " is unknown for " + std::to_string(head_count_) +
                    " heads of " + std::to_string(block_count_) + " blocks: convert the heads again");
    }
}

const TensorInfo* Heads::expect(const std::string& name, std::vector<int64_t> shape, bool optional) const {
    const TensorInfo* info = file_.find(name);
    if (!info) {
        if (optional) return nullptr;
        throw Error(file_.path() + ": tensor " + name + " is missing: convert the heads again");
    }
    shape.resize(GGML_MAX_DIMS, 1);
    if (!std::equal(shape.begin(), shape.end(), info->ne)) {
        const size_t dims = shape[1] > 1 ? 2 : 1;
        throw Error(file_.path() + ": tensor " + name + " has shape " +
                    shape_text(info->ne, std::max<size_t>(dims, info->n_dims)) + ", this base needs " +
                    shape_text(shape.data(), dims) + ": these heads are for another base");
    }
    const bool is_bias = name.ends_with(".bias");
    if (is_bias ? info->type != GGML_TYPE_F32
                : info->type == GGML_TYPE_I8 || info->type == GGML_TYPE_I16 || info->type == GGML_TYPE_I32 ||
                      info->type == GGML_TYPE_I64 || info->type == GGML_TYPE_F64) {
        throw Error(file_.path() + ": tensor " + name + " has type " + ggml_type_name(info->type) + ", it must be " +
                    (is_bias ? "f32" : "a float or quantised type") + ": convert the heads again");
    }
    return info;
}

ggml_tensor* Heads::stack(ggml_context* context, const std::vector<std::string>& names,
                          const std::vector<int64_t>& shape, bool optional) {
    const TensorInfo* first = expect(names.front(), shape, optional);
    for (const std::string& name : names) {
        const TensorInfo* info = expect(name, shape, !first);
        if ((info == nullptr) != (first == nullptr) || (info && info->type != first->type)) {
            throw Error(file_.path() + ": tensor " + name + " differs in type from " + names.front() +
                        ": convert the heads again");
        }
    }
    if (!first) return nullptr;
    std::vector<int64_t> ne = shape;
    ne.push_back(static_cast<int64_t>(names.size()));
    ggml_tensor* tensor = ggml_new_tensor(context, first->type, static_cast<int>(ne.size()), ne.data());
    ggml_set_name(tensor, names.front().c_str());
    stacked_.push_back({tensor, names});
    return tensor;
}

void Heads::declare_blocks() {
    const int64_t h = model_->embedding_size();
    for (int block = 0; block < block_count_; ++block) {
        std::vector<std::string> weights, biases;
        for (int head = 0; head < head_count_; ++head) {
            weights.push_back(head_name(head, "block." + std::to_string(block) + ".weight"));
            biases.push_back(head_name(head, "block." + std::to_string(block) + ".bias"));
        }
        weights_.push_back(stack(context_.get(), weights, {h, h}, false));
        biases_.push_back(stack(context_.get(), biases, {h}, true));
    }
}

const TensorInfo& Heads::base_output_info() const {
    const TensorInfo* info = model_->file().find("output.weight");
    if (!info) info = model_->file().find("token_embd.weight");
    if (!info || info->n_dims != 2 || info->ne[0] != model_->embedding_size() || info->ne[1] != model_->vocab_size()) {
        throw Error(model_->path() + ": no output matrix of the usual shape in this file (split models: join them)");
    }
    return *info;
}

void Heads::declare_output() {
    const int64_t h = model_->embedding_size(), rows = output_rows_;
    output_per_head_ = lm_head_ == LmHead::own || file_.find(head_name(0, "output.weight"));
    if (output_per_head_) {
        std::vector<std::string> weights, biases;
        for (int head = 0; head < head_count_; ++head) {
            weights.push_back(head_name(head, "output.weight"));
            biases.push_back(head_name(head, "output.bias"));
        }
        output_ = stack(output_context_.get(), weights, {h, rows}, false);
        output_bias_ = stack(output_context_.get(), biases, {rows}, true);
    } else if (file_.find("medusa.output.weight")) {
        output_ = stack(output_context_.get(), {"medusa.output.weight"}, {h, rows}, false);
    } else {
        if (lm_head_ == LmHead::base) output_ = model_->output_tensor();
        if (output_) return;  // the base's own matrix, where it lies
        output_is_base_rows_ = true;
        output_ = ggml_new_tensor_2d(output_context_.get(), base_output_info().type, h, rows);
        ggml_set_name(output_, "medusa.output.weight");
    }
}

void Heads::upload() {
    for (const auto& [tensor, names] : stacked_) {
        const size_t stride = ggml_nbytes(tensor) / names.size();
        for (size_t i = 0; i < names.size(); ++i) copy_to_backend(file_, *file_.find(names[i]), tensor, i * stride);
    }
    if (output_is_base_rows_) upload_rows_of_base();
}

void Heads::upload_rows_of_base() {
    const TensorInfo& source = base_output_info();
    const size_t row_size = ggml_row_size(source.type, source.ne[0]);
    std::vector<char> rows(row_size * output_rows_);
    for (int row = 0; row < output_rows_; ++row) {
        model_->file().read(source, row_size * static_cast<uint64_t>(token(row)), row_size, &rows[row * row_size]);
    }
    ggml_backend_tensor_set(output_, rows.data(), 0, rows.size());
}

uint64_t Heads::size_bytes() const {
    const auto size = [](const ggml_backend_buffer_ptr& b) { return b ? ggml_backend_buffer_get_size(b.get()) : 0; };
    return size(buffer_) + size(output_buffer_);
}

}  // namespace medusa
