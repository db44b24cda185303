// Hydra++'s prefix layer (Hydra 4): self-attention over the states of the committed tokens, with a cache of its own.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "decoding/state_bytes.h"
#include "heads/graph.h"

namespace medusa {

// What the layer reads: states [h, n] of consecutive tokens, whose keys and values go into cells (n indices), and the
// cells filled so far.
struct PrefixInputs {
    ggml_tensor* states;
    ggml_tensor* last_row = nullptr;  // the newest token's row in states (I32); nullptr: the last
    ggml_tensor *positions, *last_position, *cells;
    ggml_tensor* mask;           // F16 [cells that are attended to]
    ggml_tensor *keys, *values;  // F16 [head size * key heads, capacity]
};
// The layer's output at the newest token, [h].
ggml_tensor* prefix_output(ggml_context* c, const Heads& heads, const PrefixInputs& in);
// Only writes keys and values into their cells; these are the caches after that.
struct PrefixCells {
    ggml_tensor *keys, *values;
};
PrefixCells prefix_cells(ggml_context* c, const Heads& heads, const PrefixInputs& in);

// What the layer remembers, on the heads' device. Cell i belongs to the token at position start + i.
class PrefixCache {
  public:
    // Room for at least this many tokens. Throws OutOfMemory.
    PrefixCache(const Heads& heads, int64_t tokens);

    // A token at this position comes next: if it does not follow the last one, everything starts again with it.
    void expect(int position);
    // Tokens from `position` on are removed.
    void roll_back(int position);
    // Makes room; keeps what is there.
    void grow(int64_t tokens);
    void save(StateWriter& out) const;
    // Throws Error if it is another layer's cache: then this one is empty.
    void restore(StateReader& in);

    int64_t capacity() const { return keys_->ne[1]; }
    ggml_tensor* keys() const { return keys_; }      // F16 [head size * key heads, capacity]
    ggml_tensor* values() const { return values_; }  // the same

    int start = 0;
    int64_t count = 0;  // cells of committed tokens

  private:
    void allocate(int64_t cells);

    const Heads& heads_;
    DeviceTensors tensors_{2};
    ggml_tensor *keys_ = nullptr, *values_ = nullptr;
};
inline constexpr size_t prefix_graph_tensors = 64;  // most that it makes, including its inputs

// One decoder layer of the llama kind and a norm. Its output at the newest token replaces the hidden state. Positions
// count from the first cell.
class PrefixLayer {
  public:
    // cache: one that others fill, too; null: the layer makes its own.
    PrefixLayer(std::shared_ptr<const Heads> heads, ggml_backend_t backend,
                std::shared_ptr<PrefixCache> cache = nullptr);

    // The state [h] of the token at `position`. A token that does not follow the last one starts the layer again.
    void append(int position, std::span<const float> state);
    // Tokens from `position` on are removed.
    void roll_back(int position);
    // Computes the cells of all tokens.
    void settle();
    // As in PrefixCache.
    void save(StateWriter& out);
    void restore(StateReader& in);
    // The layer's output at the newest token, [h]; valid until the next call. There must be one.
    std::span<const float> newest();
    // How many graphs are kept for later states.
    size_t graph_count() const { return chunks_.size(); }

  private:
    struct Chunk {
        DeviceGraph graph;
        ggml_tensor *states, *positions, *last_position, *cells, *mask;
    };

    void run(size_t rows);
    Chunk& chunk_for(int64_t rows, int64_t cells);
    std::unique_ptr<Chunk> build(int64_t rows, int64_t cells);

    std::shared_ptr<const Heads> heads_;
    ggml_backend_t backend_;
    int64_t h_;  // size of a state
    std::shared_ptr<PrefixCache> cache_;
    std::vector<float> pending_;  // states whose cells are not computed yet, after those in the cache
    std::vector<float> output_;
    bool is_computed_ = false;  // output_ belongs to the newest token
    std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Chunk>> chunks_;
};

}  // namespace medusa
