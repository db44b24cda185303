// What a file with draft heads says about them, checked before any weight is read (docs/design.md, GGUF layout).
#pragma once

#include <string>
#include <vector>

#include "base/gguf_file.h"
#include "decoding/tree.h"

namespace medusa {

enum class HeadsKind { medusa, hydra, hydra_plus, streams, recurrent };
const char* heads_kind_name(HeadsKind kind);

enum class LmHead { own, base, draft_vocab };

// The attention layer of Hydra++.
struct PrefixParams {
    int head_count = 0;
    int head_count_kv = 0;  // divides head_count
    float rope_freq_base = 0.0f;
    float norm_eps = 0.0f;
    bool from_answer = false;  // it reads only the answer, from the last token of the prompt on
};

// Streams through the base's own top layers (Speculative Streaming).
struct StreamParams {
    int layers = 0;       // how many of the base's last layers
    int first_layer = 0;  // the lowest of them, from 1
    int rank = 0;         // of the adapters; 0: none
    float alpha = 0.0f;   // adapters are scaled by alpha / rank
    bool root = false;    // the root's token embedding is read
    int root_rank = 0;    // of the matrix that it goes through; 0: it is scaled instead
    bool shared = false;  // the base was trained with the streams; otherwise they left it unchanged
};

struct HeadsMetadata {
    HeadsKind kind = HeadsKind::medusa;
    int head_count = 0;
    int block_count = 0;  // residual blocks per head
    LmHead lm_head = LmHead::own;
    int output_rows = 0;                       // in an lm_head
    std::vector<Token> d2t;                    // base token of each row; empty: the whole vocabulary
    std::vector<std::vector<float>> accuracy;  // [head][rank]; empty when the file has none
    std::vector<Choice> tree;                  // empty when the file has none
    float embedding_scale = 1.0f;              // of the token embeddings that Hydra heads read
    int layers_above_input = 0;                // states read: after the layer below this many; 0: after the final norm

    bool has_prefix = false;  // a prefix layer comes before the heads: hydra_plus, and medusa where the file says so
    PrefixParams prefix;      // for that layer
    StreamParams streams;     // for heads that are streams

    bool reads_path() const {
        return kind == HeadsKind::hydra || kind == HeadsKind::hydra_plus || kind == HeadsKind::recurrent;
    }
};

// Throws Error for anything damaged, unknown, or made for a base other than one with `vocab_size` tokens.
HeadsMetadata read_heads_metadata(const GgufFile& file, int vocab_size);

// The matrices of a recurrent head's cell, after "medusa.cell.", each a ".weight".
inline constexpr const char* cell_matrices[] = {"residual", "gate", "up", "down"};
// The tensors of Hydra++'s layer, after "medusa.prefix.", each a ".weight".
inline constexpr const char* prefix_tensors[] = {"attn_norm", "attn_q",   "attn_k", "attn_v",   "attn_output",
                                                 "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down", "output_norm"};

// "medusa.{head}.{rest}"
std::string head_tensor(int head, const std::string& rest);
// "medusa.cell.{matrix}", without ".weight"
std::string cell_matrix(const std::string& matrix);
// "medusa.prefix.{part}.weight"
std::string prefix_tensor(const std::string& part);

// The base's matrices that are adapted in a stream's layer.
inline constexpr const char* stream_matrices[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                                  "ffn_gate", "ffn_up", "ffn_down"};
inline constexpr const char* stream_embedding = "medusa.stream.embedding";
inline constexpr const char* stream_root_scale = "medusa.stream.root_scale";
inline constexpr const char* stream_root_a = "medusa.stream.root.lora_a";
inline constexpr const char* stream_root_b = "medusa.stream.root.lora_b";
// "medusa.stream.{layer}.{matrix}.{part}", layers from 0, parts "lora_a" and "lora_b"
std::string stream_adapter(int layer, const std::string& matrix, const std::string& part);

// A tensor of the file. shape: in ggml's order; a vector must be F32, a matrix floats or quantized. Throws Error if it
// is missing or different.
const TensorInfo& expect_tensor(const GgufFile& file, const std::string& name, const std::vector<int64_t>& shape);

}  // namespace medusa
