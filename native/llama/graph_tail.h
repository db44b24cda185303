// What is appended to libllama's own graph, after the output matrix, through its interface for samplers on the backend.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decoding/in_graph.h"
#include "decoding/tree.h"
#include "ggml-backend.h"

struct llama_context;
struct llama_sampler_seq_config;

namespace medusa {

// Accepts the tree of a decode and may draft below it, or names the likeliest tokens of its rows.
class GraphTail {
  public:
    virtual ~GraphTail() = default;

    // What graphs are built for from now on: never host.
    virtual void take_way(StepWay way) = 0;
    // Called before a decode whose outputs are the nodes of `tree`, its root at `position`. Token -1: never accepted.
    virtual void begin(const Tree& tree, std::span<const Token> tokens, int position) = 0;
    // Whether it is to see the states of the prompt: then also before decodes whose outputs are `count` of its tokens.
    virtual bool reads_prompt() const { return false; }
    virtual void begin_prompt(int count, int position) {}
    // Kind of the next decode's graph. A graph of another kind is not reused for it, whatever its shape.
    virtual int kind() const = 0;
    // logits [vocabulary, n] of n outputs, states [h, n] after the final norm. Returns F32 numbers, contiguous, for one
    // output no more than the vocabulary has tokens. Anything else added to `graph` is computed along with them.
    // nullptr: it needs states, and there are none.
    virtual ggml_tensor* build(ggml_context* c, ggml_cgraph* graph, ggml_tensor* logits, ggml_tensor* states) = 0;
    // Whether those numbers are to come to the host, and how many each further output adds.
    virtual bool brings() const { return true; }
    virtual int64_t numbers_of_row(int64_t vocabulary) const = 0;
    // Called before a graph that build() was part of is computed; it may be an earlier one over as many outputs.
    virtual void set_inputs() = 0;
    // Takes those numbers. None: nothing was accepted, since that needs the rows of logits.
    virtual std::optional<GreedyStep> end(std::span<const float> found) = 0;
    virtual void end_prompt() {}
    // The host has accepted this node of the newest decode.
    virtual void accepted(int node) {}
    // As in Target, for the newest decode.
    virtual std::span<const RankedToken> ranked(int row) = 0;
    virtual Likeliest likeliest(int row) = 0;
    // Most tensors that build() makes, including views and leaves.
    virtual size_t most_tensors() const = 0;

    // Whether the newest graphs have it.
    bool attached() const { return attached_; }

  private:
    friend class TailSamplers;
    bool attached_ = false;
};

// The tail as libllama sees it: a sampler for each sequence of a context; the first one asked appends everything.
class TailSamplers {
  public:
    TailSamplers(std::shared_ptr<GraphTail> tail, int sequences, ggml_backend_dev_t device);
    ~TailSamplers();
    TailSamplers(const TailSamplers&) = delete;
    TailSamplers& operator=(const TailSamplers&) = delete;

    GraphTail& tail() const { return *tail_; }
    // For making a context, to which they are then attached.
    std::vector<llama_sampler_seq_config> configurations();
    // Takes effect with the next decode, for this way.
    void attach(llama_context* context, StepWay way);
    // From then on, rows of logits come to the host as usual.
    void detach(llama_context* context);

    StepWay way() const { return way_; }
    // What the newest graph lacks: a name in the model's graph, or an operator of the device. Empty: nothing.
    const std::string& lacks() const { return lacks_; }
    // The logits of the newest graph that had outputs, on the device.
    ggml_tensor* logits() const { return logits_; }

  private:
    struct Link;
    void make_links();
    void build(ggml_context* c, ggml_cgraph* graph, ggml_tensor* logits);
    ggml_tensor* part(ggml_context* c, int64_t row, int64_t width) const;

    std::shared_ptr<GraphTail> tail_;
    StepWay way_ = StepWay::greedy;
    int sequences_;
    ggml_backend_dev_t device_;
    std::vector<std::unique_ptr<Link>> links_;
    std::string lacks_;
    ggml_tensor *logits_ = nullptr, *found_ = nullptr;
};

}  // namespace medusa
