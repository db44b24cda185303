// The state after one layer, for every row of a batch, out of libllama's own graph.
//
// libllama lets a sampler of a sequence add to its graph. Ours adds nothing: for a sequence that no row belongs to, it
// looks the layer's tensor up by its name and marks it as an output, so that its memory is kept until it has been read.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "llama/attention_tap.h"

struct ggml_tensor;
struct llama_sampler;

namespace medusa {

class LayerTap {
  public:
    // layer: from 0. Not the last one, which is computed for output rows alone. attention: reads the same graphs.
    explicit LayerTap(int layer, std::unique_ptr<AttentionTap> attention = nullptr);
    ~LayerTap();
    LayerTap(const LayerTap&) = delete;
    LayerTap& operator=(const LayerTap&) = delete;

    int layer() const { return layer_; }
    const AttentionTap* attention() const { return attention_.get(); }
    // What a context needs for a sequence of its own that stays empty. Must outlive the context.
    llama_sampler* sampler() const { return chain_; }
    // A decode has begun: what was read is of an older one.
    void forget() { read_ = false; }
    // Row `row` of the newest decode, which had `rows` of them and is done. Throws Error where the graph has no such
    // layer. Valid until the next decode.
    std::span<const float> row(int row, int rows);

  private:
    struct Hooks;
    void read(int rows);

    int layer_;
    std::unique_ptr<AttentionTap> attention_;
    ggml_tensor* tensor_ = nullptr;  // in the newest graph
    llama_sampler* chain_ = nullptr;
    bool read_ = false;
    std::vector<float> values_;
};

}  // namespace medusa
