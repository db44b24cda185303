#include "llama/model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "base/quantize.h"
#include "kernels/buffer_type.h"
#include "kernels/format.h"
#include "kernels/ggml_internals.h"

namespace medusa {
namespace {

// libllama explains failures in its log only; the newest error line becomes part of our message.
std::mutex log_mutex;
std::string last_log_error;

// libllama's quantiser reports its progress to the log alone: "[  12/ 290] blk.0.attn_q.weight ...".
thread_local const OnQuantized* quantize_progress = nullptr;

void on_log(ggml_log_level level, const char* text, void*) {
    int tensor = 0, tensors = 0;
    if (quantize_progress && *quantize_progress && std::sscanf(text, "[%d/%d]", &tensor, &tensors) == 2) {
        (*quantize_progress)(tensor, tensors);
    }
    static const bool verbose = std::getenv("MEDUSA_DEBUG") != nullptr;
    if (verbose) std::fputs(text, stderr);
    if (level != GGML_LOG_LEVEL_ERROR) return;
    const std::lock_guard lock(log_mutex);
    last_log_error = text;
    while (!last_log_error.empty() && last_log_error.back() == '\n') last_log_error.pop_back();
}

// ggml asserts on some damaged files. One line instead of a stack trace; the process ends either way.
void on_abort(const char* message) {
    std::fprintf(stderr, "medusa: ggml stopped (%s): the model file is damaged or not supported\n", message);
    std::_Exit(1);
}

// ggml's AMX kernels crash when GCC built them: its intrinsic for LDTILECFG declares 8 of the 64 bytes it reads, so the
// rest of the tile configuration is optimised away (seen with GCC 12). The AVX-512 kernels take over.
void remove_amx_kernels() {
#if MEDUSA_HAS_EXTRA_BUFFER_TYPES
    if (!ggml_backend_cpu_get_extra_buffer_types) return;
    std::erase_if(ggml_backend_cpu_get_extra_buffer_types(),
                  [](ggml_backend_buffer_type_t type) { return std::string(ggml_backend_buft_name(type)) == "AMX"; });
#endif
}

// Keys and values of one head.
struct HeadSizes {
    int key, value;
};

HeadSizes head_sizes(const LlamaModel& model) {
    const int heads = std::max(llama_model_n_head(model.handle()), 1), size = model.embedding_size() / heads;
    const auto given = [&](const char* key) {
        const auto value = model.file().get_u32((model.architecture() + ".attention." + key).c_str());
        return static_cast<int>(value.value_or(static_cast<uint32_t>(size)));
    };
    return {given("key_length"), given("value_length")};
}

// ggml's flash attention on the CPU works in steps of 128 values when it is built for AVX512-FP16, and falls back to
// one value at a time for heads that are no multiple of that (3 to 7 times slower at 500 to 2000 tokens). Only where
// our own kernels do not take its place.
bool flash_attention_is_slow(const LlamaModel& model, const ContextParams& params) {
    const HeadSizes size = head_sizes(model);
    return ggml_backend_dev_type(model.output_device()) == GGML_BACKEND_DEVICE_TYPE_CPU &&
           !ggml_is_quantized(params.type_v) && size.key % 128 != 0 && kernels::buffer_type() &&
           kernels::has_avx512fp16() && !kernels::serves_attention(params.type_k, params.type_v, size.key, size.value);
}

std::string reason() {
    const std::lock_guard lock(log_mutex);
    return last_log_error.empty() ? "" : " (" + last_log_error + ")";
}

std::string token_text(const llama_vocab* vocab, llama_token token) {
    return token == LLAMA_TOKEN_NULL ? "" : llama_vocab_get_text(vocab, token);
}

}  // namespace

void initialise_backend() {
    static std::once_flag once;
    std::call_once(once, [] {
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_abort);
        remove_amx_kernels();
        kernels::register_buffer_type();
        llama_backend_init();
    });
    const std::lock_guard lock(log_mutex);
    last_log_error.clear();
}

std::string libllama_version() {
    return llama_version();
}

LlamaModel::LlamaModel(const std::string& path, int gpu_layers, bool repack, const LoadProgress& progress)
    : file_(path), gpu_layers_(gpu_layers), repack_(repack) {
    initialise_backend();
    const auto architecture_key = file_.get_string("general.architecture");
    if (!architecture_key) throw Error(path + " names no architecture: it is not a language model");
    if (*architecture_key == "medusa") {
        throw Error(path + " holds draft heads only: give the base model, and this file with --heads");
    }
    auto params = llama_model_default_params();
    params.n_gpu_layers = gpu_layers;
    params.use_extra_bufts = repack;
    // Weights that stay on the CPU: a GPU's pinned host buffer would come before the kernels' own, and no GPU at all is
    // to be seen when nothing is offloaded.
    params.no_host = repack;
    ggml_backend_dev_t no_devices[] = {nullptr};
    if (gpu_layers == 0) params.devices = no_devices;
    params.progress_callback_user_data = const_cast<LoadProgress*>(&progress);
    if (progress) {
        params.progress_callback = [](float done, void* data) { return (*static_cast<LoadProgress*>(data))(done); };
    }
    if (const TensorInfo* blob = file_.base_header()) {
        const File file = open_file(path);
        seek_file(file.get(), blob->offset, path);
        model_ = llama_model_load_from_file_ptr(file.get(), params);
    } else {
        model_ = llama_model_load_from_file(path.c_str(), params);
    }
    if (!model_) throw Error("cannot load " + path + reason() + ": the file is damaged or its kind is not supported");
    vocab_ = llama_model_get_vocab(model_);
    if (!llama_model_has_decoder(model_) || llama_model_has_encoder(model_) || llama_model_is_diffusion(model_) ||
        llama_vocab_n_tokens(vocab_) == 0) {
        llama_model_free(model_);
        throw Error(path + " is no decoder-only language model (" + *architecture_key + "): give one that chats");
    }
}

LlamaModel::~LlamaModel() {
    llama_model_free(model_);
}

std::string LlamaModel::description() const {
    char text[256] = {};
    llama_model_desc(model_, text, sizeof(text));
    return text;
}

std::string LlamaModel::architecture() const {
    return file_.get_string("general.architecture").value();
}
int LlamaModel::vocab_size() const {
    return llama_vocab_n_tokens(vocab_);
}
int LlamaModel::embedding_size() const {
    return llama_model_n_embd_out(model_);
}
int LlamaModel::layer_count() const {
    return llama_model_n_layer(model_);
}
int LlamaModel::train_context() const {
    return llama_model_n_ctx_train(model_);
}
uint64_t LlamaModel::parameter_count() const {
    return llama_model_n_params(model_);
}
uint64_t LlamaModel::size_bytes() const {
    return llama_model_size(model_);
}
bool LlamaModel::is_recurrent() const {
    return llama_model_is_recurrent(model_) || llama_model_is_hybrid(model_);
}

std::optional<std::string> LlamaModel::chat_template() const {
    const char* text = llama_model_chat_template(model_, nullptr);
    if (!text) return std::nullopt;
    return text;
}

std::string LlamaModel::bos_text() const {
    return token_text(vocab_, llama_vocab_bos(vocab_));
}
std::string LlamaModel::eos_text() const {
    return token_text(vocab_, llama_vocab_eos(vocab_));
}
bool LlamaModel::adds_bos() const {
    return llama_vocab_get_add_bos(vocab_);
}

std::vector<Token> LlamaModel::tokenize(const std::string& text, bool add_special, bool parse_special) const {
    // A token covers at least one byte; two more for the special tokens at the ends.
    std::vector<Token> tokens(text.size() + 2);
    const auto length = static_cast<int32_t>(text.size());
    auto count = llama_tokenize(vocab_, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()),
                                add_special, parse_special);
    if (count < 0) {
        tokens.resize(-static_cast<int64_t>(count));
        count = llama_tokenize(vocab_, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()),
                               add_special, parse_special);
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
    if (token < 0 || token >= vocab_size()) throw Error("token " + std::to_string(token) + " is not in the vocabulary");
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

std::vector<std::pair<std::string, ggml_tensor*>> LlamaModel::tensors() const {
#if MEDUSA_HAS_TENSOR_MAP
    return llama_internal_get_tensor_map(model_);
#else
    return {};
#endif
}

ggml_tensor* LlamaModel::output_tensor() const {
#if MEDUSA_HAS_TENSOR_MAP
    ggml_tensor* embedding = nullptr;
    for (const auto& [name, tensor] : llama_internal_get_tensor_map(model_)) {
        if (name == "output.weight") return tensor;
        if (name == "token_embd.weight") embedding = tensor;
    }
    return embedding;
#else
    return nullptr;
#endif
}

ggml_backend_dev_t LlamaModel::output_device() const {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (const ggml_tensor* output = output_tensor(); output && output->buffer) {
        const auto device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(output->buffer));
        // A pinned host buffer belongs to the GPU's device, but is computed on the CPU.
        return device && !ggml_backend_buffer_is_host(output->buffer) ? device : cpu;
    }
    const auto gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    return gpu && (gpu_layers_ < 0 || gpu_layers_ > layer_count()) ? gpu : cpu;
}

// Arrays of one llama_batch, reused from step to step.
struct LlamaContext::Batch {
    std::vector<llama_token> tokens;
    std::vector<llama_pos> positions;
    std::vector<int32_t> sequence_counts;
    std::vector<llama_seq_id*> sequences;
    std::vector<int8_t> outputs;

    llama_batch fill(std::span<const BatchRow> rows) {
        tokens.clear(), positions.clear(), sequence_counts.clear(), sequences.clear(), outputs.clear();
        for (const BatchRow& row : rows) {
            tokens.push_back(row.token);
            positions.push_back(row.position);
            sequence_counts.push_back(static_cast<int32_t>(row.sequences.size()));
            sequences.push_back(const_cast<llama_seq_id*>(row.sequences.data()));  // libllama only reads them
            outputs.push_back(row.output);
        }
        return {static_cast<int32_t>(rows.size()),
                tokens.data(),
                nullptr,
                positions.data(),
                sequence_counts.data(),
                sequences.data(),
                outputs.data()};
    }
};

LlamaContext::LlamaContext(std::shared_ptr<LlamaModel> model, const ContextParams& params)
    : model_(std::move(model)), batch_(std::make_unique<Batch>()) {
    initialise_backend();
    auto p = llama_context_default_params();
    p.n_ctx = std::max(params.context_size, 256);  // libllama's granularity; it also bounds the batch size
    p.n_batch = p.n_ubatch = 512;
    p.n_seq_max = params.max_sequences;
    // Output buffers are sized for this many rows of logits; libllama aborts beyond it.
    p.n_outputs_max = std::max(params.max_outputs, params.max_sequences);
    p.n_threads = p.n_threads_batch = params.threads;
    p.type_k = params.type_k;
    p.type_v = params.type_v;
    p.kv_unified = params.unified;
    if (flash_attention_is_slow(*model_, params)) p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.swa_full = true;  // a window-sized cache does not reuse the cells that several sequences share
    p.pooling_type = LLAMA_POOLING_TYPE_NONE;
    p.abort_callback = [](void* data) {
        return static_cast<LlamaContext*>(data)->stop_ && static_cast<LlamaContext*>(data)->stop_();
    };
    p.abort_callback_data = this;
    context_ = llama_init_from_model(model_->handle(), p);
    if (!context_) {
        throw Error("cannot make a context of " + std::to_string(params.context_size) + " tokens" + reason() +
                    ": lower --ctx-size or choose other cache types");
    }
}

LlamaContext::~LlamaContext() {
    llama_free(context_);
}
int LlamaContext::size() const {
    return static_cast<int>(llama_n_ctx(context_));
}
int LlamaContext::batch_size() const {
    return static_cast<int>(llama_n_batch(context_));
}
void LlamaContext::set_hidden(bool on) {
    llama_set_embeddings(context_, on);
}

DecodeStatus LlamaContext::decode(std::span<const BatchRow> rows, const StopPoll& stop) {
    stop_ = stop;
    const int status = llama_decode(context_, batch_->fill(rows));
    stop_ = nullptr;
    if (status == 0) return DecodeStatus::ok;
    if (status == 1) return DecodeStatus::context_full;
    if (status == 2) return DecodeStatus::cancelled;
    throw Error("llama_decode failed with status " + std::to_string(status) + reason() + ": lower --ctx-size or -ngl");
}

std::span<const float> LlamaContext::logits(int row) const {
    const float* data = llama_get_logits_ith(context_, row);
    if (!data) throw Error("no logits for row " + std::to_string(row) + " of the last decode");
    return {data, static_cast<size_t>(model_->vocab_size())};
}

std::span<const float> LlamaContext::hidden(int row) const {
    const float* data = llama_get_embeddings_ith(context_, row);
    if (!data) throw Error("this model gives no hidden states: run it with --no-spec");
    return {data, static_cast<size_t>(model_->embedding_size())};
}

bool LlamaContext::remove(int sequence, int from, int to) {
    return llama_memory_seq_rm(llama_get_memory(context_), sequence, from, to);
}

void LlamaContext::copy(int source, int target, int from, int to) {
    llama_memory_seq_cp(llama_get_memory(context_), source, target, from, to);
}

void LlamaContext::clear() {
    llama_memory_clear(llama_get_memory(context_), false);
}

namespace {

struct SamplerFree {
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerFree>;

// libllama's own samplers, so that every setting means what it means there.
class LlamaChain final : public Chain {
  public:
    LlamaChain(SamplerPtr chain, bool argmax_only, bool stateless, int top_k)
        : chain_(std::move(chain)), argmax_only_(argmax_only), stateless_(stateless), top_k_(top_k) {}

    void apply(std::span<const float> logits, std::vector<Candidate>& out) override {
        out.clear();
        if (argmax_only_ && stateless_) {
            out.push_back({argmax(logits), 1.0f});
            return;
        }
        if (stateless_ && top_k_ > 0) {
            // libllama's top-k leaves the same candidates, after copying the whole vocabulary.
            top_indices(logits, top_k_, top_);
            candidates_.clear();
            for (const int i : top_) candidates_.push_back({static_cast<llama_token>(i), logits[i], 0.0f});
        } else {
            candidates_.resize(logits.size());
            for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
        }
        llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
        llama_sampler_apply(chain_.get(), &array);
        const auto* best = std::max_element(array.data, array.data + array.size, [](const auto& a, const auto& b) {
            return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
        });
        if (argmax_only_) {
            out.push_back({best->id, 1.0f});
            return;
        }
        double sum = 0.0;
        for (size_t i = 0; i < array.size; ++i) {
            const float p = std::exp(array.data[i].logit - best->logit);
            if (p > 0.0f) out.push_back({array.data[i].id, p});
            sum += p;
        }
        for (Candidate& candidate : out) candidate.p = static_cast<float>(candidate.p / sum);
        std::sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    }

    void accept(Token token) override {
        if (!stateless_) llama_sampler_accept(chain_.get(), token);
    }

    std::unique_ptr<Chain> clone() const override {
        return std::make_unique<LlamaChain>(SamplerPtr(llama_sampler_clone(chain_.get())), argmax_only_, stateless_,
                                            top_k_);
    }

  private:
    SamplerPtr chain_;
    bool argmax_only_;
    bool stateless_;  // neither bias nor penalty: the logits decide alone
    int top_k_;
    std::vector<int> top_;
    std::vector<llama_token_data> candidates_;
};

}  // namespace

std::unique_ptr<Chain> make_chain(const SamplingParams& params, int vocab_size, std::span<const Token> prompt) {
    SamplerPtr chain(llama_sampler_chain_init({/*no_perf=*/true}));
    const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(chain.get(), sampler); };
    const bool argmax_only = params.temperature <= 0.0f;
    if (!params.logit_bias.empty()) {
        std::vector<llama_logit_bias> bias;
        for (const auto& [token, value] : params.logit_bias) {
            if (token < 0 || token >= vocab_size) {
                throw Error("logit bias: token " + std::to_string(token) + " is not in the vocabulary");
            }
            bias.push_back({token, value});
        }
        add(llama_sampler_init_logit_bias(vocab_size, static_cast<int32_t>(bias.size()), bias.data()));
    }
    if (params.repeat_penalty != 1.0f) {
        const int window = std::max(params.repeat_last_n, 0);
        llama_sampler* penalties = llama_sampler_init_penalties(vocab_size, window, params.repeat_penalty, 0.0f, 0.0f);
        const size_t skip = prompt.size() > static_cast<size_t>(window) ? prompt.size() - window : 0;
        for (const Token token : prompt.subspan(skip)) llama_sampler_accept(penalties, token);
        add(penalties);
    }
    const bool stateless = llama_sampler_chain_n(chain.get()) == 0;
    if (!argmax_only) {
        if (params.top_k > 0) add(llama_sampler_init_top_k(params.top_k));
        if (params.top_p < 1.0f) add(llama_sampler_init_top_p(params.top_p, 1));
        if (params.min_p > 0.0f) add(llama_sampler_init_min_p(params.min_p, 1));
        add(llama_sampler_init_temp(params.temperature));
    }
    return std::make_unique<LlamaChain>(std::move(chain), argmax_only, stateless, params.top_k);
}

ggml_type type_by_name(const std::string& name) {
    for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
        const char* known = ggml_type_name(static_cast<ggml_type>(type));
        if (known && name == known) return static_cast<ggml_type>(type);
    }
    throw Error("unknown type " + name + ": f16, bf16, f32, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl");
}

void quantize_model(const std::string& source, const std::string& target, const QuantizeParams& params,
                    const OnQuantized& on_tensor) {
    initialise_backend();
    auto p = llama_model_quantize_default_params();
    p.nthread = params.threads;
    p.ftype = static_cast<llama_ftype>(params.file_type);
    p.allow_requantize = params.allow_requantize;
    p.pure = params.pure;
    p.max_buf_size = size_t{256} << 20;
    quantize_progress = &on_tensor;
    const uint32_t failed = llama_model_quantize(source.c_str(), target.c_str(), &p);
    quantize_progress = nullptr;
    if (failed) throw Error("quantising " + source + " failed" + reason() + ": choose another --quant");
}

}  // namespace medusa
