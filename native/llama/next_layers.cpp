#include "llama/next_layers.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "llama/model.h"
#include "llama/state_readers.h"

namespace medusa {
namespace {

// What libllama's graph of the layers asks for, beyond what its loader does.
struct Kind {
    std::string_view architecture;
    bool several = false;                     // layers; else exactly one
    bool latent = false;                      // only with latent attention (MLA)
    std::vector<std::string_view> tensors{};  // of each layer
    bool dense_or_experts = false;            // the layers may be either
};

const std::array<Kind, 13>& kinds() {
    constexpr std::string_view experts = "ffn_gate_inp";
    static const std::array<Kind, 13> all{{
        {"bailingmoe3", false, false, {"nextn.shared_head_norm"}},
        {"cohere2moe", false, false, {experts}},
        {"deepseek2", false, true, {experts}},
        {"deepseek32", false, true, {experts}},
        {"glm-dsa", false, true, {experts}},
        {"glm4moe", false, false, {experts}},
        {"hy-v3", true},
        {"mimo2", true, false, {"attn_qkv", "ffn_gate", "ffn_up", "ffn_down"}},
        {"nemotron_h_moe", false, false, {"nextn.shared_head_norm"}},
        {"qwen35"},
        {"qwen35moe", false, false, {experts}},
        {"qwen3next", false, false, {experts}},
        {"step35", true, false, {}, true},
    }};
    return all;
}

using Names = std::vector<std::string_view>;
const Names of_every_kind{"nextn.eh_proj", "nextn.enorm", "nextn.hnorm"};
const Names of_dense{"ffn_gate", "ffn_up", "ffn_down"};
const Names of_experts{"ffn_gate_exps",  "ffn_up_exps",  "ffn_down_exps",
                       "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"};

uint32_t key(const GgufFile& file, const std::string& architecture, const char* name) {
    return file.get_u32((architecture + "." + name).c_str()).value_or(0);
}

// What a key says about one layer: libllama takes a number for all, or one for each. Of a pattern, a number n means all
// but every n-th. nullopt: neither.
std::optional<uint32_t> of_layer(const GgufFile& file, const char* name, uint32_t layer, bool pattern = false) {
    const std::string full = file.get_string("general.architecture").value_or("") + "." + name;
    const int64_t id = gguf_find_key(file.header(), full.c_str());
    if (id < 0) return std::nullopt;
    if (gguf_get_kv_type(file.header(), id) == GGUF_TYPE_UINT32) {
        const uint32_t number = gguf_get_val_u32(file.header(), id);
        return pattern ? number > 0 && layer % number + 1 < number : number;
    }
    if (gguf_get_kv_type(file.header(), id) != GGUF_TYPE_ARRAY || layer >= gguf_get_arr_n(file.header(), id)) {
        return std::nullopt;
    }
    const gguf_type type = gguf_get_arr_type(file.header(), id);
    const void* data = gguf_get_arr_data(file.header(), id);
    if (type == GGUF_TYPE_BOOL) return static_cast<const int8_t*>(data)[layer] != 0;
    if (type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) return std::nullopt;
    return static_cast<const uint32_t*>(data)[layer];
}

std::string shown(const std::optional<uint32_t>& number) {
    return number ? std::to_string(*number) : "missing";
}

bool has_tensor(const GgufFile& file, const std::string& name) {
    return std::ranges::any_of(file.tensors(), [&](const TensorInfo& info) { return info.name == name; });
}

[[noreturn]] void refuse(const GgufFile& file, const std::string& reason) {
    throw Error(file.path() + ": its layers for further tokens (MTP) cannot be used: " + reason, "use {no_drafter}");
}

void check_layers(const GgufFile& file, const Kind& kind, uint32_t first, uint32_t count) {
    for (uint32_t layer = first; layer < first + count; ++layer) {
        const std::string prefix = "blk." + std::to_string(layer) + ".";
        const auto require = [&](std::string_view name) {
            const std::string full = prefix + std::string(name) + ".weight";
            if (!has_tensor(file, full)) refuse(file, "tensor " + full + " is missing");
        };
        std::ranges::for_each(of_every_kind, require);
        std::ranges::for_each(kind.tensors, require);
        if (kind.dense_or_experts) {
            const bool experts = has_tensor(file, prefix + "ffn_gate_inp.weight");
            std::ranges::for_each(experts ? of_experts : of_dense, require);
        }
    }
}

// Libllama lets an assistant's windowed layers read the last layer but one of its model, the others the last one: all
// of these, and their heads, have to be alike.
void check_cache_fits(const GgufFile& model, const GgufFile& assistant, const auto& refuse_pair) {
    constexpr const char *pattern = "attention.sliding_window_pattern", *heads = "attention.head_count_kv";
    const std::string wanted = model.get_string("general.architecture").value_or("");
    const uint32_t layers = key(model, wanted, "block_count") - next_layer_count(model);
    const auto is_windowed = [&](const GgufFile& file, uint32_t layer) { return of_layer(file, pattern, layer, true); };
    if (layers < 2 || is_windowed(model, layers - 1) != 0 || is_windowed(model, layers - 2) != 1) {
        refuse_pair("it reads a model whose last layer has no window, and the one before it has");
    }
    bool any = false;
    for (uint32_t layer = 0; layer < next_layer_count(assistant); ++layer) {
        const auto windowed = is_windowed(assistant, layer);
        if (!windowed) refuse_pair(std::string(pattern) + " does not tell its layers");
        any |= *windowed != 0;
        const auto has = of_layer(model, heads, layers - (*windowed ? 2 : 1)),
                   needs = of_layer(assistant, heads, layer);
        if (!has || has != needs || *has == 0) {
            refuse_pair(std::string(heads) + " is " + shown(needs) + ", not " + shown(has));
        }
    }
    if (!any) refuse_pair("none of its layers has a window");
    for (const char* name : {"attention.key_length", "attention.key_length_swa", "attention.value_length",
                             "attention.value_length_swa", "attention.sliding_window"}) {
        const auto has = of_layer(model, name, 0), needs = of_layer(assistant, name, 0);
        if (has != needs) refuse_pair(std::string(name) + " is " + shown(needs) + ", not " + shown(has));
    }
}

}  // namespace

uint32_t next_layer_count(const GgufFile& file) {
    const std::string architecture = file.get_string("general.architecture").value_or("");
    if (is_state_reader(file)) return std::max(key(file, architecture, "block_count"), 1u);
    return key(file, architecture, "nextn_predict_layers");
}

bool has_next_layers_alone(const GgufFile& file) {
    const bool assists = file.get_string("general.architecture") == assistant_architecture;
    return next_layer_count(file) > 0 &&
           (assists || is_state_reader(file) || !has_tensor(file, "blk.0.attn_norm.weight"));
}

void check_next_layers(const GgufFile& file) {
    if (is_state_reader(file)) return check_state_reader(file);
    const std::string architecture = file.get_string("general.architecture").value_or("");
    const uint32_t count = next_layer_count(file), all = key(file, architecture, "block_count");
    if (count == 0) refuse(file, "it has none");
    if (count > all) refuse(file, std::to_string(count) + " of " + std::to_string(all) + " layers");
    if (architecture == assistant_architecture) {
        if (count != all) refuse(file, "an assistant has no other layers, this one has " + std::to_string(all - count));
        if (count > file.tensors().size()) refuse(file, "it has fewer tensors than layers");
        return;
    }
    const auto kind = std::ranges::find(kinds(), architecture, &Kind::architecture);
    if (kind == kinds().end()) refuse(file, "llama.cpp has no graph for those of " + architecture + " models");
    if (!kind->several && count != 1) {
        refuse(file, "llama.cpp runs one in " + architecture + " models, not " + std::to_string(count));
    }
    if (kind->latent && (key(file, architecture, "attention.key_length_mla") == 0 ||
                         key(file, architecture, "attention.value_length_mla") == 0)) {
        refuse(file, "llama.cpp runs those of " + architecture + " models only with latent attention");
    }
    if (key(file, architecture, "leading_dense_block_count") > all - count && !kind->tensors.empty()) {
        refuse(file, "leading_dense_block_count is larger than its other layers are many");
    }
    check_layers(file, *kind, all - count, count);
}

void check_next_layers_fit(const LlamaModel& model, const LlamaModel& drafter) {
    if (&model == &drafter) return;
    if (drafter.reads_inner_states()) return check_state_reader_fits(model, drafter);
    const auto refuse_pair = [&](const std::string& reason) {
        throw Error(drafter.path() + ": it cannot draft for " + model.path() + ": " + reason,
                    "choose the right pair, or use {no_drafter}");
    };
    const std::string &wanted = model.architecture(), found = drafter.architecture();
    const bool assists = drafter.reads_other_cache();
    if (assists ? wanted != "gemma4" : wanted != found) refuse_pair("it is made for other models than " + wanted);
    if (model.embedding_size() != drafter.embedding_size()) {
        refuse_pair("it reads states of " + std::to_string(drafter.embedding_size()) + " numbers, the model has " +
                    std::to_string(model.embedding_size()));
    }
    if (!assists && model.layer_count() != drafter.layer_count()) {
        refuse_pair("it follows a model of " + std::to_string(drafter.layer_count()) + " layers, this one has " +
                    std::to_string(model.layer_count()));
    }
    const auto has_output = [](const LlamaModel& one) { return has_tensor(one.file(), "output.weight"); };
    for (int layer = drafter.layer_count(); layer < drafter.layer_count() + drafter.next_layers(); ++layer) {
        const std::string own = "blk." + std::to_string(layer) + ".nextn.shared_head_head.weight";
        if (!assists && has_output(model) && !has_output(drafter) && !has_tensor(drafter.file(), own)) {
            refuse_pair("it has no output matrix");
        }
    }
    if (assists) check_cache_fits(model.file(), drafter.file(), refuse_pair);
}

}  // namespace medusa
