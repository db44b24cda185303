#include "llama/model.h"

#include <algorithm>

#include "base/platform.h"
#include "kernels/ggml_internals.h"
#include "llama.h"
#include "llama/backend.h"
#include "llama/next_layers.h"
#include "llama/state_readers.h"

namespace medusa {
namespace {

// Ends with a null, as libllama requires.
std::vector<ggml_backend_dev_t> devices_named(const std::vector<std::string>& names) {
    std::vector<ggml_backend_dev_t> out;
    for (const std::string& name : names) {
        ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
        if (!device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
            throw Error("there is no device " + name + ": `medusa doctor` lists them");
        }
        out.push_back(device);
    }
    out.push_back(nullptr);
    return out;
}

// Integers that libllama itself looks up: experts by token, and a drafter's vocabulary.
bool is_table(const TensorInfo& info) {
    return (info.type == GGML_TYPE_I32 && info.name.find("tid2eid") != std::string::npos) ||
           (info.type == GGML_TYPE_I64 && info.name.find("d2t") != std::string::npos);
}

// libllama ends the process if mapped weights are not aligned to this, and a file may ask for less.
constexpr uint64_t least_alignment = 32;

void check_tensors(const GgufFile& file) {
    for (const TensorInfo& info : file.tensors()) {
        if (info.offset % least_alignment != 0) {
            throw Error(file.path() + ": tensor " + info.name + " does not begin at a multiple of " +
                        std::to_string(least_alignment) +
                        " bytes, as llama.cpp needs it: the file is damaged, or has to be converted again");
        }
        if (is_weight_type(info.type) || is_table(info) || info.name == base_header_tensor) continue;
        if (info.name.starts_with("medusa.")) continue;  // heads check their own
        throw Error(file.path() + ": tensor " + info.name + " has type " + ggml_type_name(info.type) +
                    ", which no model computes with: the file is damaged, download it again");
    }
}

}  // namespace

Pooling pooling_of(const GgufFile& file) {
    const auto architecture = file.get_string("general.architecture");
    const std::string key = architecture.value_or("") + ".pooling_type";
    const auto value = architecture ? file.get_u32(key.c_str()) : std::nullopt;
    if (!value || static_cast<int32_t>(*value) == LLAMA_POOLING_TYPE_UNSPECIFIED) return Pooling::none;
    switch (*value) {
        case LLAMA_POOLING_TYPE_NONE:
            return Pooling::none;
        case LLAMA_POOLING_TYPE_MEAN:
            return Pooling::mean;
        case LLAMA_POOLING_TYPE_CLS:
            return Pooling::first;
        case LLAMA_POOLING_TYPE_LAST:
            return Pooling::last;
        case LLAMA_POOLING_TYPE_RANK:
            return Pooling::rank;
        default:
            throw Error(file.path() + ": " + key + " is " + std::to_string(*value) +
                        ", which llama.cpp does not know: the file is damaged or newer than it");
    }
}

// Without the weights: what the file says decides.
void LlamaModel::check_kind(bool embeds) const {
    const Pooling pooling = pooling_of(file_);
    if (pooling == Pooling::rank) {
        throw Error(path() + " is a reranker, which medusa does not run: give a model that writes text, or one for " +
                    "embeddings");
    }
    if (!embeds && !next_layers_ && pooling == Pooling::none &&
        !file_.get_bool((architecture() + ".attention.causal").c_str()).value_or(true)) {
        throw Error(path() + " is not a decoder-only language model (" + architecture() +
                    "): give one that generates text, or an embedding model whose file has a pooling_type");
    }
    if (embeds == (pooling != Pooling::none)) return;
    if (embeds) {
        throw Error(path() + " does not say how its states become embeddings (pooling_type): give an embedding model");
    }
    throw Error(path() + " is an embedding model and writes no text: `medusa serve` serves it");
}

LlamaModel::LlamaModel(const std::string& path, int gpu_layers, bool repack, const LoadProgress& progress,
                       const std::optional<std::vector<std::string>>& devices, bool next_layers, bool embeds)
    : file_(path), gpu_layers_(gpu_layers), repack_(repack), next_layers_(next_layers) {
    initialise_backend();
    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
        throw Error(
            "llama.cpp has no CPU backend here: reinstall llama-cpp-python, or name a module in GGML_BACKEND_PATH");
    }
    const auto architecture_key = file_.get_string("general.architecture");
    if (!architecture_key) throw Error(path + " has no architecture: it is not a language model");
    if (*architecture_key == "medusa") {
        throw Error(path + " contains only draft heads", "give the base model, and this file with {heads}");
    }
    check_kind(embeds);
    check_tensors(file_);
    if (next_layers) check_next_layers(file_);
    explain_bus_errors();
    auto params = llama_model_default_params();
    params.n_gpu_layers = gpu_layers;
    params.use_extra_bufts = repack && !keeps_amx_buffers();
    params.load_mtp = next_layers;
    // For weights that stay on the CPU: a GPU's pinned host buffer would take precedence over the kernels' own, and no
    // GPU may be visible when nothing is offloaded.
    params.no_host = repack;
    std::vector<ggml_backend_dev_t> chosen;
    if (devices || gpu_layers == 0) {
        chosen = devices_named(gpu_layers == 0 ? std::vector<std::string>() : *devices);
        params.devices = chosen.data();
        gpu_ = chosen.front();
    } else {
        gpu_ = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
        if (!gpu_) gpu_ = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
    }
    params.progress_callback_user_data = const_cast<LoadProgress*>(&progress);
    if (progress) {
        params.progress_callback = [](float done, void* data) { return (*static_cast<LoadProgress*>(data))(done); };
    }
    if (const TensorInfo* blob = file_.base_header()) {
        const File file = open_file(path);
        seek_file(file.get(), blob->offset, path);
        model_.reset(llama_model_load_from_file_ptr(file.get(), params));
    } else {
        model_.reset(llama_model_load_from_file(path.c_str(), params));
    }
    if (const std::string reason = allocation_reason(); !model_ && !reason.empty()) {
        throw OutOfMemory("no memory for the weights of " + path + reason,
                          memory_remedy(gpu_layers == 0 ? nullptr : gpu_));
    }
    if (!model_)
        throw Error("cannot load " + path + log_reason() + ": the file is damaged or its kind is not supported",
                    next_layers ? "use {no_drafter}" : "");
    vocab_ = llama_model_get_vocab(model_.get());
    const bool encodes = llama_model_has_encoder(model_.get()) && !(next_layers && reads_inner_states());
    if (!llama_model_has_decoder(model_.get()) || encodes || llama_model_is_diffusion(model_.get()) ||
        llama_vocab_n_tokens(vocab_) == 0) {
        throw Error(path + " is not a decoder-only language model (" + *architecture_key + "): give " +
                    (embeds ? "another embedding model" : "one that generates text"));
    }
    limits_.emplace(vocab_, file_);
}

LlamaModel::~LlamaModel() = default;

void LlamaModel::Free::operator()(llama_model* model) const {
    llama_model_free(model);
}

std::string LlamaModel::description() const {
    char text[256] = {};
    llama_model_desc(model_.get(), text, sizeof(text));
    return text;
}

std::string LlamaModel::architecture() const {
    return file_.get_string("general.architecture").value();
}
int LlamaModel::vocab_size() const {
    return llama_vocab_n_tokens(vocab_);
}
int LlamaModel::embedding_size() const {
    return llama_model_n_embd_out(model_.get());
}
int LlamaModel::layer_count() const {
    return llama_model_n_layer(model_.get());
}
int LlamaModel::train_context() const {
    return llama_model_n_ctx_train(model_.get());
}
uint64_t LlamaModel::size_bytes() const {
    return llama_model_size(model_.get());
}
bool LlamaModel::is_recurrent() const {
    return llama_model_is_recurrent(model_.get()) || llama_model_is_hybrid(model_.get());
}

bool LlamaModel::has_experts() const {
    return file_.get_u32((architecture() + ".expert_count").c_str()).value_or(0) > 0;
}

bool LlamaModel::can_draft() const {
    return architecture() != "deepseek4";
}

int LlamaModel::next_layers() const {
    if (!next_layers_) return 0;
    return reads_inner_states() ? llama_model_n_layer(model_.get()) : llama_model_n_layer_nextn(model_.get());
}

bool LlamaModel::encodes_states() const {
    return architecture() == eagle_architecture;
}

bool LlamaModel::drafts_blocks() const {
    return architecture() == dflash_architecture;
}

bool LlamaModel::has_layer_for_each_draft() const {
    return next_layers() > 1 && !reads_other_cache() && !drafts_blocks();
}

bool LlamaModel::reads_other_cache() const {
    return architecture() == assistant_architecture;
}

void LlamaModel::require_states() const {
    // For these, libllama's graph leaves out the output matrix when asked for states; the logits would be stale.
    const std::string name = architecture();
    if (name == "lfm2" || name == "lfm2moe") {
        throw Error(path() + ": llama.cpp returns the logits or the hidden states of " + name +
                        " models, not both, so heads cannot draft",
                    "use {no_heads}");
    }
}

std::optional<std::string> LlamaModel::chat_template() const {
    const char* text = llama_model_chat_template(model_.get(), nullptr);
    if (!text) return std::nullopt;
    return text;
}

const char* LlamaModel::token_text(Token token) const {
    return token == LLAMA_TOKEN_NULL ? "" : llama_vocab_get_text(vocab_, token);
}

std::string LlamaModel::bos_text() const {
    return token_text(llama_vocab_bos(vocab_));
}
std::string LlamaModel::eos_text() const {
    return token_text(llama_vocab_eos(vocab_));
}

std::vector<Token> LlamaModel::tokenize(const std::string& text, bool add_special, bool parse_special) const {
    // A token covers at least one byte; two more for the special tokens at the ends.
    std::vector<Token> tokens(text.size() + 2);
    int32_t count = 0;
    const auto tokenize = [&] {
        try {
            count = llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                   static_cast<int32_t>(tokens.size()), add_special, parse_special);
        } catch (const std::exception&) {  // thrown by MSVC's std::regex for want of stack
            throw Error("the tokenizer cannot split this text: break its longest line into several");
        }
    };
    const size_t stack = limits_->stack_for(text, parse_special);
    const auto run = [&] { stack > 0 ? on_large_stack(stack, tokenize) : tokenize(); };
    run();
    if (count < 0) {
        tokens.resize(-static_cast<int64_t>(count));
        run();
    }
    if (count < 0) throw Error("the tokenizer failed on this text: give it as UTF-8");
    tokens.resize(count);
    return tokens;
}

std::string LlamaModel::detokenize(const std::vector<Token>& tokens, bool special) const {
    std::string text;
    for (const Token token : tokens) text += piece(token, special);
    return text;
}

std::string LlamaModel::piece(Token token, bool special) const {
    require_tokens({&token, 1}, "");
    std::string text(64, '\0');
    auto length = llama_token_to_piece(vocab_, token, text.data(), static_cast<int32_t>(text.size()), 0, special);
    if (length < 0) {
        text.resize(-static_cast<int64_t>(length));
        length = llama_token_to_piece(vocab_, token, text.data(), static_cast<int32_t>(text.size()), 0, special);
    }
    text.resize(std::max(length, 0));
    return text;
}

bool LlamaModel::is_end_of_generation(Token token) const {
    return llama_vocab_is_eog(vocab_, token);
}

void LlamaModel::require_tokens(std::span<const Token> tokens, const std::string& what) const {
    for (const Token token : tokens) {
        if (token < 0 || token >= vocab_size()) {
            throw Error(what + "token " + std::to_string(token) + " is not in the vocabulary");
        }
    }
}

std::vector<std::pair<std::string, ggml_tensor*>> LlamaModel::tensors() const {
    std::vector<std::pair<std::string, ggml_tensor*>> out;
    for (ggml_tensor* tensor : loaded_tensors(model_.get())) out.emplace_back(ggml_get_name(tensor), tensor);
    return out;
}

ggml_tensor* LlamaModel::output_tensor() const {
    ggml_tensor* tied = nullptr;
    for (ggml_tensor* tensor : loaded_tensors(model_.get())) {
        const std::string_view name = ggml_get_name(tensor);
        if (name == "output.weight") return tensor;
        const bool on_device = tensor->buffer && !ggml_backend_buffer_is_host(tensor->buffer);
        if (name == "token_embd.weight" && (!tied || on_device)) tied = tensor;
    }
    return tied;
}

ggml_backend_dev_t LlamaModel::output_device() const {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (const ggml_tensor* output = output_tensor(); output && output->buffer) {
        const auto device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(output->buffer));
        // A pinned host buffer belongs to the GPU's device, but its contents are computed on the CPU.
        return device && !ggml_backend_buffer_is_host(output->buffer) ? device : cpu;
    }
    // The output matrix is the first to be offloaded.
    return gpu_ && gpu_layers_ != 0 ? gpu_ : cpu;
}

std::string LlamaModel::backend() const {
    return ggml_backend_reg_name(ggml_backend_dev_backend_reg(output_device()));
}
std::string LlamaModel::device() const {
    return ggml_backend_dev_description(output_device());
}

}  // namespace medusa
