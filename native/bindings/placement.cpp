#include "probes/placement.h"

#include "bindings/bindings.h"
#include "heads/metadata.h"
#include "in_graph/transfers.h"
#include "kernels/buffer_type.h"
#include "kernels/format.h"
#include "llama/backend.h"

namespace medusa {

namespace {

// In bytes. kind: of the heads, None without any.
nb::dict step_transfers(const Tree& tree, int n_vocab, int n_embd, const std::optional<std::string>& kind,
                        int head_count, int output_rows, bool has_prefix, int recycled) {
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

}  // namespace

void bind_placement(nb::module_& m) {
    nb::class_<Placement>(m, "Placement")
        .def_prop_ro("role", [](const Placement& group) { return role_name(group.role); })
        .def_ro("type", &Placement::type)
        .def_ro("buffer", &Placement::buffer)
        .def_ro("tensors", &Placement::tensors)
        .def_ro("nbytes", &Placement::bytes);
    nb::class_<DeviceUse>(m, "DeviceUse")
        .def_ro("name", &DeviceUse::name)
        .def_ro("layers", &DeviceUse::layers)
        .def_ro("output", &DeviceUse::output)
        .def_ro("nbytes", &DeviceUse::bytes);
    nb::class_<kernels::AttentionUse>(m, "AttentionUse")
        .def_ro("served", &kernels::AttentionUse::served)
        .def_ro("left", &kernels::AttentionUse::left)
        .def_ro("reason", &kernels::AttentionUse::reason);
    m.def(
        "attention_use",
        [](std::shared_ptr<LlamaModel> model, const std::string& type_k, const std::string& type_v) {
            return attention_of(std::move(model), type_by_name(type_k), type_by_name(type_v));
        },
        "model"_a, nb::kw_only(), "type_k"_a = "f16", "type_v"_a = "f16", nb::call_guard<nb::gil_scoped_release>());
    m.def("draft_memory", &draft_memory_of, "model"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def("step_transfers", &step_transfers, "tree"_a, "n_vocab"_a, "n_embd"_a, nb::kw_only(), "kind"_a = nb::none(),
          "head_count"_a = 0, "output_rows"_a = 0, "has_prefix"_a = false, "recycled"_a = 0);
    m.def("use_kernels", &kernels::use_kernels, "wanted"_a);
    m.def("forward_log", &forward_log, "wanted"_a);
    m.def("kernel_info", [] {
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
    });
}

}  // namespace medusa
