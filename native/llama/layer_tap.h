// What libllama's own graph holds besides its outputs: the state after a layer, and what attention works on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct ggml_cgraph;
struct ggml_tensor;
struct llama_sampler;

namespace medusa {

// Arguments of ggml_rope_ext().
struct Rotary {
    int size = 0, mode = 0, trained_context = 0;
    float base = 0, scale = 0, extrapolation = 0, magnitude = 0, beta_fast = 0, beta_slow = 0;
    ggml_tensor* factors = nullptr;  // frequency factors, or none

    bool operator==(const Rotary&) const = default;
};

struct LayerAttention {
    ggml_tensor *keys = nullptr, *values = nullptr;  // caches, F16 [size of a head * key heads, cells]
    int64_t heads = 0, key_heads = 0, key_size = 0, value_size = 0;
    float scale = 0;
    Rotary rotary;

    bool operator==(const LayerAttention&) const = default;
};

// What libllama's own attention in some layers works on: their caches, the cells that a row sees, how keys are rotated.
//
// It is read from the operands of the fused attention when libllama's graph is made. The caches stay where they are for
// the life of the context; the mask is marked as an output, so that it is kept until the next decode.
class AttentionTap {
  public:
    // Layers first .. first + count - 1.
    AttentionTap(int first, int count);

    // Reads a graph that libllama has made and will compute.
    void read(ggml_cgraph* graph);
    // Why the attention of the newest graph cannot be followed; empty: it can.
    const std::string& lacks() const { return lacks_; }
    // The layers that every graph so far has shown.
    const std::vector<LayerAttention>& layers() const { return layers_; }
    // Cells of the caches.
    int64_t cells() const;
    // Which cells row `row` of the newest decode saw, including its own; the decode must be done: [cells()], 0 or 1.
    // Returns how many. Throws Error where the mask says more than that.
    int seen_by(int row, std::vector<char>& out) const;

  private:
    std::string read_layer(const ggml_tensor* attention, size_t layer);

    int first_;
    size_t count_;
    std::vector<LayerAttention> layers_;
    ggml_tensor* mask_ = nullptr;  // F16 [cells in use, rows], of the newest graph
    std::string lacks_ = "no graph is known yet";
};

// States after some layers, for every row of a batch, taken from libllama's own graph.
//
// libllama lets a sequence's sampler add to its graph. Ours adds nothing: for a sequence that no row belongs to, it
// looks up the layers' tensors by name and marks them as outputs, so that their memory is kept until they are read.
class LayerTap {
  public:
    // layers: from 0. Not the last one, which is computed only for output rows. attention: reads the same graphs.
    explicit LayerTap(std::vector<int> layers, std::unique_ptr<AttentionTap> attention = nullptr);
    ~LayerTap();
    LayerTap(const LayerTap&) = delete;
    LayerTap& operator=(const LayerTap&) = delete;

    const AttentionTap* attention() const { return attention_.get(); }
    // What a context needs for a sequence of its own that stays empty. Must outlive the context.
    llama_sampler* sampler() const { return chain_; }
    // A decode has begun: what was read belongs to an older one.
    void forget() { read_ = false; }
    // Row `row` of the newest decode, which had `rows` rows and is done: the states after the layers, one after the
    // other. Throws Error where the graph has no such layer. Valid until the next decode.
    std::span<const float> row(int row, int rows);

  private:
    struct Hooks;
    void check(size_t layer, int rows) const;
    void read(int rows);

    std::vector<int> layers_;
    std::unique_ptr<AttentionTap> attention_;
    std::vector<ggml_tensor*> tensors_;  // of the layers, in the newest graph
    llama_sampler* chain_ = nullptr;
    bool read_ = false;
    std::vector<float> values_;  // [rows][layers][h]
};

}  // namespace medusa
