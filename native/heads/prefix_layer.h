// Hydra++'s prefix layer (Hydra 4): self-attention over the states of the committed tokens, with a cache of its own.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "heads/graph.h"

namespace medusa {

// What the layer reads: states [h, n] of consecutive tokens, whose keys and values go into cells (n indices), and the
// cells so far.
struct PrefixInputs {
    ggml_tensor* states;
    ggml_tensor* last_row = nullptr;  // of states, the newest token's (I32); nullptr: the last
    ggml_tensor *positions, *last_position, *cells;
    ggml_tensor* mask;           // F16 [cells that are attended to]
    ggml_tensor *keys, *values;  // F16 [head size * key heads, capacity]
};
// The layer's output at the newest token, [h].
ggml_tensor* prefix_output(ggml_context* c, const Heads& heads, const PrefixInputs& in);
// Keys, or values, of a cell.
int64_t prefix_cell_width(const Heads& heads);
inline constexpr size_t prefix_graph_tensors = 64;  // that it makes, at most, with its inputs

// One decoder layer of the llama kind and a norm. Its output at the newest token takes the place of the hidden state.
// Keys and values lie in cells, cell i for the token of position start + i; positions count from the first of them.
class PrefixLayer {
  public:
    PrefixLayer(std::shared_ptr<const Heads> heads, ggml_backend_t backend);

    // The state [h] of the token of `position`. A token that does not follow the last one starts the layer anew.
    void append(int position, std::span<const float> state);
    // Tokens from `position` on are gone.
    void roll_back(int position);
    // The layer's output at the newest token, [h]; valid until the next call. There must be one.
    std::span<const float> newest();

  private:
    struct Chunk {
        HeadsGraph graph;
        ggml_tensor *states, *positions, *last_position, *cells, *mask;
    };

    void run(size_t rows);
    void reserve(int64_t cells);
    Chunk& chunk_for(int64_t rows, int64_t cells);
    std::unique_ptr<Chunk> build(int64_t rows, int64_t cells);

    std::shared_ptr<const Heads> heads_;
    ggml_backend_t backend_;
    int64_t h_, width_;  // of a state; of a cell

    int start_ = 0;               // position of the first cell
    int64_t count_ = 0;           // cells in use
    std::vector<float> pending_;  // states whose cells are not computed yet, behind those
    std::vector<float> output_;
    bool is_computed_ = false;  // output_ belongs to the newest token

    int64_t capacity_ = 0;
    ggml_context_ptr cache_context_;
    ggml_backend_buffer_ptr cache_buffer_;
    ggml_tensor *keys_ = nullptr, *values_ = nullptr;  // F16 [head size * key heads, capacity]
    std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Chunk>> chunks_;
};

}  // namespace medusa
