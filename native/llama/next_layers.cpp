#include "llama/next_layers.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "llama/model.h"

namespace medusa {
namespace {

// What libllama's graph of the layers asks for, beyond what its loader does.
struct Kind {
    std::string_view architecture;
    bool several = false;                     // layers; else exactly one
    bool latent = false;                      // only with latent attention (MLA)
    std::vector<std::string_view> tensors{};  // of each layer
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
        {"step35", true, false, {"ffn_gate", "ffn_up", "ffn_down"}},
    }};
    return all;
}

constexpr std::string_view of_every_kind[] = {"nextn.eh_proj", "nextn.enorm", "nextn.hnorm"};

uint32_t key(const GgufFile& file, const std::string& architecture, const char* name) {
    return file.get_u32((architecture + "." + name).c_str()).value_or(0);
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
    }
}

}  // namespace

uint32_t next_layer_count(const GgufFile& file) {
    return key(file, file.get_string("general.architecture").value_or(""), "nextn_predict_layers");
}

bool has_next_layers_alone(const GgufFile& file) {
    const bool assists = file.get_string("general.architecture") == assistant_architecture;
    return next_layer_count(file) > 0 && (assists || !has_tensor(file, "blk.0.attn_norm.weight"));
}

void check_next_layers(const GgufFile& file) {
    const std::string architecture = file.get_string("general.architecture").value_or("");
    const uint32_t count = next_layer_count(file), all = key(file, architecture, "block_count");
    if (count == 0) refuse(file, "it has none");
    if (count > all) refuse(file, std::to_string(count) + " of " + std::to_string(all) + " layers");
    if (architecture == assistant_architecture) {
        if (count != all) refuse(file, "an assistant has no other layers, this one has " + std::to_string(all - count));
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
    const std::string last = "blk." + std::to_string(drafter.layer_count()) + ".nextn.shared_head_head.weight";
    if (!assists && has_output(model) && !has_output(drafter) && !has_tensor(drafter.file(), last)) {
        refuse_pair("it has no output matrix");
    }
    if (!assists) return;
    for (const char* name : {"attention.key_length", "attention.key_length_swa", "attention.value_length",
                             "attention.value_length_swa", "attention.sliding_window"}) {
        const uint32_t has = key(model.file(), wanted, name), needs = key(drafter.file(), found, name);
        if (has != needs)
            refuse_pair(std::string(name) + " is " + std::to_string(needs) + ", not " + std::to_string(has));
    }
}

}  // namespace medusa
