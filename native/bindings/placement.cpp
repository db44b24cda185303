#include "probes/placement.h"

#include "bindings/bindings.h"
#include "heads/metadata.h"
#include "in_graph/transfers.h"
#include "kernels/buffer_type.h"
#include "kernels/format.h"
#include "llama/backend.h"

namespace medusa {
namespace {

Facts kernel_info() {
    const kernels::Status& status = kernels::status();
    nb::list supported;
    for (const kernels::Kernels* one : kernels::supported_kernels()) supported.append(one->name);
    nb::dict out;
    out["used"] = kernels::kernels_used();
    out["selected"] = status.selected ? nb::object(nb::str(status.selected->name)) : nb::object(nb::none());
    out["requested"] = status.requested;
    out["reason"] = status.reason;
    out["late"] = status.late;
    out["supported"] = supported;
    out["attention"] = status.selected && status.selected->attend;
    out["types"] = kernels::type_names();
    out["buffer"] = kernels::buffer_name;
    return out;
}

constexpr const char* kernel_info_doc =
    "The kernels of this process.\n\n"
    "used: new models get them. selected: name of the instruction set whose kernels these are; None: llama.cpp's\n"
    "run, and \"reason\" says why. late: because a model was loaded before them. requested: MEDUSA_ISA when the\n"
    "module was loaded. supported: what this processor has, the best last. attention: whether the selected ones\n"
    "have one of their own. types: ggml types that have kernels. buffer: name of the buffer type that holds the\n"
    "weights the kernels multiply with.";

constexpr const char* draft_memory_doc =
    "How the model's memory follows drafts.\n\n"
    "\"cells\": of one token each, which a tree shares out. Recurrent models have one running state, which follows\n"
    "a chain: \"snapshots\": it steps back over what is refused; \"copies\": it is kept before a draft, and what is\n"
    "accepted of one that was refused is decoded again. \"none\": the model can only decode plainly.";

nb::typed<nb::dict, nb::str, int64_t> step_transfers(const Tree& tree, int n_vocab, int n_embd,
                                                     const std::optional<std::string>& kind, int head_count,
                                                     int output_rows, bool has_prefix, int recycled) {
    std::optional<in_graph::HeadsShape> heads;
    if (kind) heads = {*kind != heads_kind_name(HeadsKind::medusa), has_prefix, head_count, output_rows};
    const in_graph::StepTransfers found = in_graph::transfers_of(tree, n_vocab, n_embd, heads, recycled);
    nb::dict out;
    out["logits"] = found.logits;
    out["states"] = found.states;
    out["heads"] = found.heads;
    out["greedy"] = found.greedy;
    out["grown"] = found.grown;
    out["sampled"] = found.sampled;
    return out;
}

constexpr const char* step_transfers_doc =
    "Bytes that a step with this tree sends from a device, which has the output matrix, to the host.\n\n"
    "kind: of the draft heads, None without any. recycled: nodes that recycled tokens are learned from. \"logits\",\n"
    "\"states\", \"heads\" (rows of their output matrices): where the host samples, accepts and drafts. \"greedy\":\n"
    "where the model's graph accepts and drafts at temperature 0; \"grown\": the same of dynamic trees; \"sampled\":\n"
    "where it names the likeliest tokens of each node.";

}  // namespace

void bind_placement(nb::module_& m) {
    nb::class_<Placement>(m, "Placement",
                          "Weights of a loaded model that have one role, one type and one kind of buffer.")
        .def_prop_ro(
            "role", [](const Placement& group) { return role_name(group.role); },
            "\"matrix\" (multiplied with) | \"experts\" (a stack of them) | \"embedding\" (looked up) | \"other\"\n"
            "(norms, biases).")
        .def_ro("type", &Placement::type, "ggml type name: \"q4_1\", \"q4_K\".")
        .def_ro("buffer", &Placement::buffer,
                "Name of the buffer type; kernel_info()[\"buffer\"] where our kernels multiply.")
        .def_ro("tensors", &Placement::tensors)
        .def_ro("nbytes", &Placement::bytes, "Size in the type's own layout.");
    nb::class_<DeviceUse>(m, "DeviceUse", "What a device, or the CPU, holds of a model.")
        .def_ro("name", &DeviceUse::name, "As in system_info(): \"CUDA0\", \"CPU\".")
        .def_ro("layers", &DeviceUse::layers)
        .def_ro("output", &DeviceUse::output, "Whether it holds the output matrix, which is where heads run.")
        .def_ro("nbytes", &DeviceUse::bytes, "Of weights.");
    nb::class_<kernels::AttentionUse>(m, "AttentionUse",
                                      "What became of a forward pass's fused attention operators on the CPU. Zeros:\n"
                                      "another device ran them, or none.")
        .def_ro("served", &kernels::AttentionUse::served, "Run by our kernels.")
        .def_ro("left", &kernels::AttentionUse::left, "Run by llama.cpp.")
        .def_ro("reason", &kernels::AttentionUse::reason, "Why the last of those was left; \"\" when none was.");
    m.def(
        "attention_use",
        [](std::shared_ptr<LlamaModel> model, const std::string& type_k, const std::string& type_v) {
            return attention_of(std::move(model), type_by_name(type_k), type_by_name(type_v));
        },
        "model"_a, nb::kw_only(), "type_k"_a = "f16", "type_v"_a = "f16", nb::call_guard<nb::gil_scoped_release>(),
        "Of one token, tried out with such a cache; NativeError when the model cannot decode it.");
    m.def("draft_memory", &draft_memory_of, "model"_a, nb::call_guard<nb::gil_scoped_release>(), draft_memory_doc);
    m.def("step_transfers", &step_transfers, "tree"_a, "n_vocab"_a, "n_embd"_a, nb::kw_only(), "kind"_a = nb::none(),
          "head_count"_a = 0, "output_rows"_a = 0, "has_prefix"_a = false, "recycled"_a = 0, step_transfers_doc);
    m.def("use_kernels", &kernels::use_kernels, "wanted"_a,
          "Whether models that are loaded from now on get our kernels, and attention runs on them; yes at first.\n\n"
          "Weights stay where they are. Not while another thread decodes.");
    m.def("forward_log", &forward_log, "wanted"_a,
          "Whether llama.cpp's log goes to whoever read it before this module was loaded, too; no at first.");
    m.def("kernel_info", &kernel_info, kernel_info_doc);
}

}  // namespace medusa
