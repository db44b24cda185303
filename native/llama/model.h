// The only door to llama.cpp: model, context, tokenizer and sampler chain. No other file calls it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/common.h"
#include "base/gguf_file.h"
#include "decoding/sampler.h"
#include "decoding/target.h"
#include "decoding/tree_cache.h"
#include "ggml-backend.h"

struct llama_model;
struct llama_context;
struct llama_vocab;

namespace medusa {

std::string libllama_version();

// Takes libllama's log over (its errors become parts of our messages) and starts its backends. Cheap to repeat.
void initialise_backend();

// Progress of loading in 0..1; false aborts.
using LoadProgress = std::function<bool(float)>;

class LlamaModel final : public Vocabulary {
  public:
    // Loads a GGUF, or the base part of a single file. gpu_layers < 0: all when there is a GPU. repack: weights are
    // copied into the layouts of faster kernels; without, they stay in the mapped file. Throws Error.
    LlamaModel(const std::string& path, int gpu_layers, bool repack, const LoadProgress& progress);
    ~LlamaModel() override;
    LlamaModel(const LlamaModel&) = delete;
    LlamaModel& operator=(const LlamaModel&) = delete;

    const std::string& path() const { return file_.path(); }
    // Whether weights were copied into the layouts of faster kernels.
    bool repacks() const { return repack_; }
    const GgufFile& file() const { return file_; }
    std::string description() const;
    std::string architecture() const;
    int vocab_size() const;
    int embedding_size() const;
    int layer_count() const;
    int train_context() const;
    uint64_t parameter_count() const;
    uint64_t size_bytes() const;
    // Recurrent or hybrid: the state cannot branch.
    bool is_recurrent() const;
    std::optional<std::string> chat_template() const;
    std::string bos_text() const;
    std::string eos_text() const;
    bool adds_bos() const;

    std::vector<Token> tokenize(const std::string& text, bool add_special, bool parse_special) const;
    std::string detokenize(const std::vector<Token>& tokens, bool special) const;
    std::string piece(Token token) const override { return piece(token, false); }
    std::string piece(Token token, bool special) const;
    bool is_end_of_generation(Token token) const override;

    // Name and tensor of every loaded weight; empty where the platform does not export them.
    std::vector<std::pair<std::string, ggml_tensor*>> tensors() const;
    // The loaded output matrix (the embedding matrix when tied); nullptr where the platform does not export it.
    ggml_tensor* output_tensor() const;
    // The device whose memory holds the output matrix: where heads run.
    ggml_backend_dev_t output_device() const;

    llama_model* handle() const { return model_; }

  private:
    GgufFile file_;
    llama_model* model_ = nullptr;
    const llama_vocab* vocab_ = nullptr;
    int gpu_layers_;
    bool repack_;
};

struct ContextParams {
    int context_size = 0;  // cells, shared by all sequences (unified) or split evenly among them
    int max_sequences = 1;
    int max_outputs = 1;  // output rows of one decode
    int threads = 1;
    bool unified = true;  // sequences share cells
    ggml_type type_k = GGML_TYPE_F16;
    ggml_type type_v = GGML_TYPE_F16;
};

// One token of a batch.
struct BatchRow {
    Token token;
    int position;
    std::span<const int> sequences;
    bool output;
};

class LlamaContext final : public CacheOps {
  public:
    LlamaContext(std::shared_ptr<LlamaModel> model, const ContextParams& params);
    ~LlamaContext() override;
    LlamaContext(const LlamaContext&) = delete;
    LlamaContext& operator=(const LlamaContext&) = delete;

    const LlamaModel& model() const { return *model_; }
    int size() const;
    // Most rows one decode() takes.
    int batch_size() const;
    // Whether outputs carry hidden states (which makes every row of a batch an output).
    void set_hidden(bool on);
    // At most batch_size() rows. `stop` is polled during the computation (CPU only). Throws Error when libllama fails.
    DecodeStatus decode(std::span<const BatchRow> rows, const StopPoll& stop);
    std::span<const float> logits(int row) const;
    std::span<const float> hidden(int row) const;

    bool remove(int sequence, int from, int to) override;
    void copy(int source, int target, int from, int to) override;
    void clear();

  private:
    std::shared_ptr<LlamaModel> model_;
    llama_context* context_ = nullptr;
    struct Batch;
    std::unique_ptr<Batch> batch_;
    StopPoll stop_;
};

// The chain of `params` over `vocab_size` logits; the repeat penalty starts with the end of `prompt`.
std::unique_ptr<Chain> make_chain(const SamplingParams& params, int vocab_size, std::span<const Token> prompt);

// ggml type by its name ("f16", "q8_0"); Error for an unknown name.
ggml_type type_by_name(const std::string& name);

}  // namespace medusa
