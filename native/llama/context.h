// A context of a loaded model: its KV cache, decoding, and the rows that come out.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "decoding/sequence_memory.h"
#include "decoding/target.h"
#include "llama/graph_tail.h"
#include "llama/layer_tap.h"
#include "llama/model.h"
#include "llama/pass_threads.h"

struct llama_context;

namespace medusa {

class LlamaContext;

struct ContextParams {
    int context_size = 0;  // cells, shared by all sequences (unified) or split evenly among them
    int max_sequences = 1;
    int max_outputs = 1;  // output rows of one decode
    int batch = 512;      // most rows of one decode
    int snapshots = 0;    // how many of the newest tokens a recurrent state can step back by, where the model can
    Threads threads;
    bool unified = true;                  // sequences share cells
    std::vector<int> tap_layers{};        // states after these layers are wanted (unified caches only)
    bool tap_attention = false;           // and what the layers above the first of them attend to
    bool states_alone = false;            // end_at_states() will be called
    bool next_states = false;             // the states that layers for further tokens read are wanted, of every row
    bool next_layer = false;              // runs one of these layers instead of the model: rows carry states, and
                                          // outputs leave such states, or every row (next_states)
    const LlamaContext* other = nullptr;  // whose cache it reads, where the model has none of its own
    ggml_type type_k = GGML_TYPE_F16;
    ggml_type type_v = GGML_TYPE_F16;
    std::shared_ptr<GraphTail> tail{};  // for graphs with outputs, from the first one on
    bool pads = false;                  // with the tail: trees change from step to step, and are decoded padded
};

// One token of a batch.
struct BatchRow {
    Token token;
    int position;
    std::span<const int> sequences;
    bool output;
    std::span<const float> state{};  // what a layer for further tokens reads besides, or, with no_token, alone
};

class LlamaContext final : public CacheOps {
  public:
    LlamaContext(std::shared_ptr<LlamaModel> model, const ContextParams& params);
    ~LlamaContext() override;
    LlamaContext(const LlamaContext&) = delete;
    LlamaContext& operator=(const LlamaContext&) = delete;

    const LlamaModel& model() const { return *model_; }
    llama_context* handle() const { return context_; }
    int size() const;
    // As in ContextParams; 0: the model cannot step back.
    int snapshots() const;
    // Most rows that one decode() takes.
    int batch_size() const;
    // How many prompt tokens are best decoded at a time, at most batch_size().
    int piece_size() const;
    // Whether the rows of a text attend to later ones, so that one decode has to take them all.
    bool takes_whole_texts() const;
    // Whether outputs carry hidden states (which makes every row of a batch an output).
    void set_hidden(bool on);
    // Where bits depend on the number of threads, that number is chosen only here.
    void begin_answer() { threads_.begin_answer(); }
    // For comparing the times of passes: the number of threads changes only where threads are kept from running.
    void hold_threads() { threads_.hold(); }
    ThreadUse thread_use() const { return threads_.use(); }
    // The next decode leaves its outputs without logits. On a processor, this saves the output matrix.
    void end_at_states() { next_ends_at_states_ = true; }
    // At most batch_size() rows. `stop` is polled during the computation (CPU only). Throws Error when libllama fails.
    DecodeStatus decode(std::span<const BatchRow> rows, const StopPoll& stop);
    // Waits until the device has finished what was decoded: decode() may return earlier. Reading rows waits, too.
    void synchronize() const;
    // With a tail, the row is fetched from the device.
    std::span<const float> logits(int row);
    std::span<const float> hidden(int row) const;
    // States of any row of the newest decode, output or not, after the tapped layers: one after the other.
    std::span<const float> tapped(int row) const;
    // Where next states are wanted, or a layer for them runs (then of outputs only).
    std::span<const float> next_state(int row) const;
    // The layer that runs from now on, from 0.
    void use_next_layer(int layer);
    // What the layer for further tokens makes of states of the model drafted for: [n][wide] to [n][embedding_size()],
    // for at most batch_size() of them. Only where its model says that it encodes.
    std::vector<float> encode(std::span<const float> states, size_t wide);
    // What the layers above it attend to, where that was requested; else null.
    const AttentionTap* attention() const { return tap_ ? tap_->attention() : nullptr; }

    // Graphs end in the tail, except with StepWay::host. Returns host where there is no tail, or the device lacks some
    // of it.
    StepWay take_way(StepWay wanted);
    // Why not, if there is a tail.
    std::string tail_lacks() const { return tail_lacks_; }
    // How many decodes reused the graph of the decode before.
    int reused_graphs() const;
    // What the tail returned from the newest decode.
    std::span<const float> found();

    bool remove(int sequence, int from, int to) override;
    void copy(int source, int target, int from, int to) override;
    int shortest() override;
    std::vector<uint8_t> state() override;
    bool set_state(std::span<const uint8_t> state) override;
    void save_all(StateWriter& out) override;
    bool set_all(StateReader& in) override;
    // In sequence 0: the position after its newest token.
    int end() const;
    void clear();

  private:
    static bool goes_on(ggml_tensor* node, bool ask, void* self);
    // What `pass` returns, a function of libllama; `take_back` undoes what an abandoned pass left.
    int run(int rows, const std::function<int()>& pass, const std::function<void()>& take_back);
    void take_back(std::span<const BatchRow> rows);

    std::shared_ptr<LlamaModel> model_;
    PassThreads threads_;
    std::unique_ptr<LayerTap> tap_;
    llama_context* context_ = nullptr;
    struct Batch;
    std::unique_ptr<Batch> batch_;
    StopPoll stop_;
    std::unique_ptr<TailSamplers> tail_;
    std::string tail_lacks_;
    std::vector<float> found_;
    const std::string_view states_;  // libllama's name for them where end_at_states() ends
    bool ends_at_states_ = false, next_ends_at_states_ = false;
    std::vector<float> row_;  // of logits, fetched
    int rows_ = 0;            // in the newest decode
};

}  // namespace medusa
