// A loaded model: its weights, its tokenizer, what its file says.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/common.h"
#include "base/gguf_file.h"
#include "decoding/target.h"
#include "ggml-backend.h"
#include "llama/tokenizer_limits.h"

struct llama_model;
struct llama_vocab;

namespace medusa {

// Progress of loading, 0..1; false aborts.
using LoadProgress = std::function<bool(float)>;

// What becomes of the states of a text's tokens where the file is of a model for embeddings: their mean, the first
// or the last one; rank: a score instead, by rerankers.
enum class Pooling { none, mean, first, last, rank };

// As the file says. Throws Error for a value that llama.cpp does not know.
Pooling pooling_of(const GgufFile& file);

class LlamaModel final : public Vocabulary {
  public:
    // Loads a GGUF, or the base part of a single file. gpu_layers < 0: all if there is a GPU. repack: weights are
    // copied into the layouts of faster kernels; otherwise they stay in the mapped file. devices: names of those to
    // use, empty for the CPU alone; by default libllama's choice. next_layers: the file's layers for further tokens
    // (MTP) are loaded, too. embeds: the model makes embeddings; else it writes text. Throws Error for a model of the
    // other kind; OutOfMemory where a device is too small.
    LlamaModel(const std::string& path, int gpu_layers, bool repack, const LoadProgress& progress,
               const std::optional<std::vector<std::string>>& devices = std::nullopt, bool next_layers = false,
               bool embeds = false);
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
    uint64_t size_bytes() const;
    // Recurrent or hybrid: its state cannot branch.
    bool is_recurrent() const;
    bool has_experts() const;
    // False: libllama ends the process on some of the batches that drafting makes.
    bool can_draft() const;
    // How many layers for further tokens (MTP, EAGLE-3, DFlash) were loaded; they come after the others.
    int next_layers() const;
    // They read states of several layers of the model drafted for (state_readers.h): EAGLE-3 encodes these first, and
    // DFlash drafts a block of tokens at a time.
    bool reads_inner_states() const { return encodes_states() || drafts_blocks(); }
    bool encodes_states() const;
    bool drafts_blocks() const;
    // Each draft of a chain has a layer of its own.
    bool has_layer_for_each_draft() const;
    // A file of such layers alone, which read another model's cache: its decodes write no cells.
    bool reads_other_cache() const;
    // Throws Error where a decode gives no hidden states along with its logits: nothing can be drafted from them.
    void require_states() const;
    std::optional<std::string> chat_template() const;
    // As the vocabulary spells it; "" for no token.
    const char* token_text(Token token) const;
    std::string bos_text() const;
    std::string eos_text() const;

    std::vector<Token> tokenize(const std::string& text, bool add_special, bool parse_special) const;
    std::string detokenize(const std::vector<Token>& tokens, bool special) const;
    std::vector<Token> split(const std::string& text) const override { return tokenize(text, false, false); }
    std::string piece(Token token) const override { return piece(token, false); }
    std::string piece(Token token, bool special) const;
    bool is_end_of_generation(Token token) const override;
    // Throws Error, beginning with `what`, where one of them is not in the vocabulary.
    void require_tokens(std::span<const Token> tokens, const std::string& what) const;

    // Name and tensor of every loaded weight; empty where the platform does not export them.
    std::vector<std::pair<std::string, ggml_tensor*>> tensors() const;
    // The loaded output matrix; nullptr where the platform does not export it. A tied one (the embedding matrix) is
    // loaded twice if it is used for products on a device and for lookups on the host: this is the device's copy.
    ggml_tensor* output_tensor() const;
    // The device whose memory holds the output matrix: where heads run.
    ggml_backend_dev_t output_device() const;
    // The name of that device's backend in ggml ("CPU", "CUDA", "MTL", "Vulkan"), and its own description.
    std::string backend() const;
    std::string device() const;

    llama_model* handle() const { return model_.get(); }

  private:
    struct Free {
        void operator()(llama_model* model) const;
    };

    // Throws Error.
    void check_kind(bool embeds) const;

    GgufFile file_;
    std::unique_ptr<llama_model, Free> model_;
    const llama_vocab* vocab_ = nullptr;
    std::optional<TokenizerLimits> limits_;
    int gpu_layers_;
    ggml_backend_dev_t gpu_ = nullptr;  // the first that layers may go to
    bool repack_, next_layers_;
};

}  // namespace medusa
