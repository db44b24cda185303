// What a file with draft heads says about them, checked before any weight is read (docs/design.md, GGUF layout).
#pragma once

#include <string>
#include <vector>

#include "base/gguf_file.h"
#include "decoding/tree.h"

namespace medusa {

enum class HeadsKind { medusa, hydra, hydra_plus };
const char* heads_kind_name(HeadsKind kind);

enum class LmHead { own, base, draft_vocab };

// The attention layer of Hydra++.
struct PrefixParams {
    int head_count = 0;
    int head_count_kv = 0;  // divides head_count
    float rope_freq_base = 0.0f;
    float norm_eps = 0.0f;
    bool from_answer = false;  // it reads the answer alone, from the last token of the prompt on
};

struct HeadsMetadata {
    HeadsKind kind = HeadsKind::medusa;
    int head_count = 0;
    int block_count = 0;  // residual blocks per head
    LmHead lm_head = LmHead::own;
    int output_rows = 0;                       // of an lm_head
    std::vector<Token> d2t;                    // base token of each row; empty: the whole vocabulary
    std::vector<std::vector<float>> accuracy;  // [head][rank]; empty when the file has none
    std::vector<Choice> tree;                  // empty when the file has none
    float embedding_scale = 1.0f;              // of the token embeddings that Hydra heads read
    int layers_above_input = 0;                // states read: after the layer below so many; 0: after the final norm

    bool has_prefix = false;  // a prefix layer comes before the heads: hydra_plus, and medusa where the file says so
    PrefixParams prefix;      // of it

    bool reads_path() const { return kind != HeadsKind::medusa; }
};

// Throws Error for anything that is damaged, unknown or for another base than one of `vocab_size` tokens.
HeadsMetadata read_heads_metadata(const GgufFile& file, int vocab_size);

// The tensors of Hydra++'s layer behind "medusa.prefix.", each a ".weight".
inline constexpr const char* prefix_tensors[] = {"attn_norm", "attn_q",   "attn_k", "attn_v",   "attn_output",
                                                 "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down", "output_norm"};

// "medusa.{head}.{rest}"
std::string head_tensor(int head, const std::string& rest);
// "medusa.prefix.{part}.weight"
std::string prefix_tensor(const std::string& part);

}  // namespace medusa
