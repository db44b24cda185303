// What libllama's own attention of some layers works on: their caches, the cells that a row sees, how keys are turned.
//
// It is read from the operands of the fused attention in libllama's graph when the graph is made. The caches stay where
// they are for the life of the context; the mask is marked as an output, so that it is kept until the next decode.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct ggml_cgraph;
struct ggml_tensor;

namespace medusa {

// Of ggml_rope_ext().
struct Rotary {
    int size = 0, mode = 0, trained_context = 0;
    float base = 0, scale = 0, extrapolation = 0, magnitude = 0, beta_fast = 0, beta_slow = 0;
    ggml_tensor* factors = nullptr;  // of the frequencies, or none

    bool operator==(const Rotary&) const = default;
};

struct LayerAttention {
    ggml_tensor *keys = nullptr, *values = nullptr;  // caches, F16 [size of a head * key heads, cells]
    int64_t heads = 0, key_heads = 0, key_size = 0, value_size = 0;
    float scale = 0;
    Rotary rotary;

    bool operator==(const LayerAttention&) const = default;
};

class AttentionTap {
  public:
    // Layers first .. first + count - 1.
    AttentionTap(int first, int count);

    // Of a graph that libllama has made and will compute.
    void read(ggml_cgraph* graph);
    // Why the attention of the newest graph cannot be followed; empty: it can.
    const std::string& lacks() const { return lacks_; }
    // Those that every graph so far has shown.
    const std::vector<LayerAttention>& layers() const { return layers_; }
    // Cells of the caches.
    int64_t cells() const;
    // Which cells row `row` of the newest decode saw, its own included, which is done: [cells()], 0 or 1. Returns how
    // many. Throws Error where the mask says more than that.
    int seen_by(int row, std::vector<char>& out) const;

  private:
    std::string read_layer(const ggml_tensor* attention, size_t layer);

    int first_;
    size_t count_;
    std::vector<LayerAttention> layers_;
    ggml_tensor* mask_ = nullptr;  // F16 [cells in use, rows], of the newest graph
    std::string lacks_ = "no graph is known yet";
};

}  // namespace medusa
