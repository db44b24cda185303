#include "llama/state_readers.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "llama/model.h"

namespace medusa {
namespace {

constexpr size_t layers_of_eagle = 3;

// Models in which the state that a layer reads is not what the layer before it has made.
constexpr std::array<std::string_view, 2> mixes_states{"deepseek4", "qwen4exp"};

std::string architecture(const GgufFile& file) {
    return file.get_string("general.architecture").value_or("");
}

bool is_eagle(const GgufFile& file) {
    return architecture(file) == eagle_architecture;
}

[[noreturn]] void refuse(const GgufFile& file, const std::string& reason) {
    throw Error(
        file.path() + ": this " + (is_eagle(file) ? "EAGLE-3" : "DFlash") + " drafter cannot be used: " + reason,
        "use {no_drafter}");
}

uint32_t key(const GgufFile& file, const char* name, uint32_t otherwise = 0) {
    return file.get_u32((architecture(file) + "." + name).c_str()).value_or(otherwise);
}

size_t token_count(const GgufFile& file) {
    const int64_t id = gguf_find_key(file.header(), "tokenizer.ggml.tokens");
    const bool listed = id >= 0 && gguf_get_kv_type(file.header(), id) == GGUF_TYPE_ARRAY;
    return listed ? gguf_get_arr_n(file.header(), id) : 0;
}

// libllama and ggml end the process where these are not so.
void check_attention(const GgufFile& file) {
    const uint32_t width = key(file, "embedding_length"), heads = key(file, "attention.head_count"),
                   key_heads = key(file, "attention.head_count_kv", heads);
    if (width == 0 || heads == 0 || key_heads == 0 || heads % key_heads != 0) {
        refuse(file, std::to_string(heads) + " heads of attention over " + std::to_string(key_heads) +
                         " of keys, and states of " + std::to_string(width) + " numbers");
    }
    const uint32_t size = key(file, "attention.key_length", width / heads);
    if (const uint32_t value = key(file, "attention.value_length", width / heads); size == 0 || size != value) {
        refuse(file, "keys have " + std::to_string(size) + " numbers, values " + std::to_string(value));
    }
    if (const uint32_t turned = key(file, "rope.dimension_count", size); turned > size || turned % 2 != 0) {
        refuse(file, "rope.dimension_count is " + std::to_string(turned) + ", of " + std::to_string(size));
    }
}

void check_vocabulary(const GgufFile& file) {
    const size_t tokens = token_count(file);
    if (const TensorInfo* rows = file.find("token_embd.weight"); rows && static_cast<size_t>(rows->ne[1]) < tokens) {
        refuse(file, "token_embd.weight has " + std::to_string(rows->ne[1]) + " rows for " + std::to_string(tokens) +
                         " tokens");
    }
    if (!own_vocabulary(file).empty() && !file.find("output.weight")) {
        refuse(file, "it has a vocabulary of its own (d2t), and no output matrix");
    }
}

// libllama's loader asks for these, too; a file that lacks one should not be chosen.
void check_tensors(const GgufFile& file) {
    const auto require = [&](const std::string& name) {
        if (!file.find(name + ".weight")) refuse(file, "tensor " + name + ".weight is missing");
    };
    for (const char* name : {"fc", "output_norm"}) require(name);
    const auto norm_of_states = file.get_bool((architecture(file) + ".norm_before_fc").c_str());
    if (!is_eagle(file) || norm_of_states.value_or(false)) require("enc.output_norm");
    for (uint32_t layer = 0; layer < key(file, "block_count"); ++layer) {
        const std::string block = "blk." + std::to_string(layer) + ".";
        for (const char* name :
             {"attn_norm", "attn_q", "attn_k", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"}) {
            require(block + name);
        }
        for (const char* name : {"attn_norm_2", "attn_v"}) {
            if (is_eagle(file)) require(block + name);
        }
        for (const char* name : {"attn_q_norm", "attn_k_norm"}) {
            if (!is_eagle(file)) require(block + name);
        }
    }
}

void check_dflash(const GgufFile& file) {
    for (const TensorInfo& info : file.tensors()) {
        for (const char* other : {"markov_w", "selector_", "hc_", "conv_base"}) {
            if (info.name.find(other) == std::string::npos) continue;
            refuse(file, "it is of a later kind (DFlash 2, DSpark), tensor " + info.name);
        }
    }
    const std::string prefix = architecture(file) + ".";
    if (gguf_find_key(file.header(), (prefix + "rope.dimension_sections").c_str()) >= 0) {
        refuse(file, "its positions have several sections");
    }
    if (block_size(file) < 2) refuse(file, "block_size is " + std::to_string(block_size(file)));
    const auto mask = file.get_u32("tokenizer.ggml.mask_token_id");
    if (!mask || *mask >= token_count(file)) refuse(file, "its mask is no token");
}

}  // namespace

bool is_state_reader(const GgufFile& file) {
    return is_eagle(file) || architecture(file) == dflash_architecture;
}

std::vector<int> layers_read(const GgufFile& file) {
    const std::string name = architecture(file) + ".target_layers";
    const int64_t id = gguf_find_key(file.header(), name.c_str());
    if (id < 0 || gguf_get_kv_type(file.header(), id) != GGUF_TYPE_ARRAY) refuse(file, name + " is missing");
    const gguf_type type = gguf_get_arr_type(file.header(), id);
    const size_t count = gguf_get_arr_n(file.header(), id);
    const bool listed = type == GGUF_TYPE_INT32 || type == GGUF_TYPE_UINT32;
    if (!listed || count == 0 || (is_eagle(file) && count != layers_of_eagle)) {
        refuse(file, name + " are not " + (is_eagle(file) ? std::to_string(layers_of_eagle) + " " : "") + "layers");
    }
    std::vector<int32_t> layers(count);
    std::memcpy(layers.data(), gguf_get_arr_data(file.header(), id), count * sizeof(int32_t));
    for (int32_t& layer : layers) {
        // What a layer reads is what the one before it has made.
        if (layer < 1) refuse(file, name + " has layer " + std::to_string(layer) + ", those from 1 on can be read");
        --layer;
    }
    return layers;
}

std::vector<Token> own_vocabulary(const GgufFile& file) {
    const TensorInfo* table = file.find("d2t");
    if (!table) return {};
    if (table->type != GGML_TYPE_I64) refuse(file, std::string("d2t has type ") + ggml_type_name(table->type));
    std::vector<int64_t> ids(static_cast<size_t>(table->ne[0]));
    if (table->size != ids.size() * sizeof(int64_t)) refuse(file, "d2t is not a list of tokens");
    file.read(*table, 0, table->size, ids.data());
    const size_t tokens = token_count(file);
    for (size_t row = 0; row < ids.size(); ++row) {
        if (ids[row] >= 0 && static_cast<size_t>(ids[row]) < tokens) continue;
        refuse(file, "row " + std::to_string(row) + " of d2t is token " + std::to_string(ids[row]) + ", of " +
                         std::to_string(tokens));
    }
    return {ids.begin(), ids.end()};
}

int block_size(const GgufFile& file) {
    return static_cast<int>(std::min<uint32_t>(key(file, "block_size", 16), INT32_MAX));
}

void check_state_reader(const GgufFile& file) {
    layers_read(file);
    check_attention(file);
    check_vocabulary(file);
    const uint32_t layers = key(file, "block_count");
    if (layers == 0 || layers > file.tensors().size() || (is_eagle(file) && layers != 1)) {
        refuse(file, "it has " + std::to_string(layers) + " layers" + (is_eagle(file) ? ", not 1" : ""));
    }
    check_tensors(file);
    if (!is_eagle(file)) return check_dflash(file);
    if (key(file, "target_hidden_size") == 0) refuse(file, "target_hidden_size is missing");
}

void check_state_reader_fits(const LlamaModel& model, const LlamaModel& drafter) {
    const GgufFile& file = drafter.file();
    const auto refuse_pair = [&](const std::string& reason) {
        throw Error(drafter.path() + ": it cannot draft for " + model.path() + ": " + reason,
                    "choose the right pair, or use {no_drafter}");
    };
    const std::string width = std::to_string(model.embedding_size());
    // DFlash's own width is that of the states.
    const uint32_t wanted = key(file, is_eagle(file) ? "target_hidden_size" : "embedding_length");
    if (static_cast<int>(wanted) != model.embedding_size()) {
        refuse_pair("it reads states of " + std::to_string(wanted) + " numbers, the model has " + width);
    }
    for (const int layer : layers_read(file)) {
        if (layer + 1 < model.layer_count()) continue;
        refuse_pair("it reads the state before layer " + std::to_string(layer + 1) + ", those up to " +
                    std::to_string(model.layer_count() - 1) + " of this model can be read");
    }
    if (std::ranges::find(mixes_states, model.architecture()) != mixes_states.end()) {
        refuse_pair("states of " + model.architecture() + " models cannot be read");
    }
    // The vocabularies may differ by padding.
    for (const Token token : own_vocabulary(file)) {
        if (token >= model.vocab_size()) {
            refuse_pair("it drafts token " + std::to_string(token) + ", the model has " +
                        std::to_string(model.vocab_size()));
        }
    }
    const bool same_width = model.embedding_size() == drafter.embedding_size();
    if (!file.find("token_embd.weight") && !same_width) {
        refuse_pair("it uses the model's embeddings, of " + width + " numbers, and its own have " +
                    std::to_string(drafter.embedding_size()));
    }
    if (!file.find("output.weight") && (!same_width || model.vocab_size() != drafter.vocab_size())) {
        refuse_pair("it uses the model's output matrix, which has another size");
    }
}

}  // namespace medusa
