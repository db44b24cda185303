#include "llama/model.h"
#include "bindings/bindings.h"
#include "probes/placement.h"

namespace medusa {
namespace {

// Loads without the GIL; the progress callback takes it, and its exceptions abort the load and are passed on.
std::shared_ptr<LlamaModel> load_model(const std::string& path, int n_gpu_layers, bool repack,
                                       const Callback<std::optional<bool>(float)>& on_progress,
                                       const std::optional<std::vector<std::string>>& devices, bool next_layers,
                                       bool embeds) {
    Callbacks call;
    LoadProgress progress;
    if (!on_progress.is_none()) {
        progress = [&](float done) { return call([&] { return nb::object(on_progress(done)); }); };
    }
    try {
        const nb::gil_scoped_release released;
        return std::make_shared<LlamaModel>(path, n_gpu_layers, repack, progress, devices, next_layers, embeds);
    } catch (const Error&) {
        call.rethrow();
        throw;
    }
}

constexpr const char* load_doc =
    "Loads a GGUF (plain, or the base part of a single file). n_gpu_layers < 0: all, when there is a GPU.\n\n"
    "devices: names of those to use, none of them for the CPU alone; None: llama.cpp's choice. OutOfMemoryError\n"
    "when the layers do not fit.\n\n"
    "repack: weights are copied for faster kernels; without, they stay pages of the file, which the system can take\n"
    "back at any time. next_layers: the layers for further tokens (MTP) are loaded, too. embeds: an embedding model, "
    "for\n"
    "Embedder; others are refused then, and it is refused without. on_progress gets 0..1 and may return False to "
    "abort.";

void bind_tokenizer(nb::class_<LlamaModel>& type) {
    type
        // nanobind copies the text before the GIL is released; libllama's tokenizers may run in several threads.
        .def("tokenize", &LlamaModel::tokenize, "text"_a, nb::kw_only(), "add_special"_a = true,
             "parse_special"_a = true, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "detokenize",
            [](const LlamaModel& model, const std::vector<Token>& tokens, bool special) {
                return text(model.detokenize(tokens, special));
            },
            "tokens"_a, nb::kw_only(), "special"_a = false)
        .def(
            "token_piece",
            [](const LlamaModel& model, Token token, bool special) {
                const std::string text = model.piece(token, special);
                return nb::bytes(text.data(), text.size());
            },
            "token"_a, nb::kw_only(), "special"_a = false)
        .def("is_eog", &LlamaModel::is_end_of_generation, "token"_a);
}

}  // namespace

void bind_model(nb::module_& m) {
    nb::class_<LlamaModel> type(m, "Model");
    type.def(nb::new_(&load_model), "path"_a, nb::kw_only(), "n_gpu_layers"_a = -1, "repack"_a = true,
             "on_progress"_a = nb::none(), "devices"_a = nb::none(), "next_layers"_a = false, "embeds"_a = false,
             load_doc)
        .def_prop_ro("path", &LlamaModel::path)
        .def_prop_ro("description", &LlamaModel::description, "For example \"llama 135M Q4_1\".")
        .def_prop_ro("architecture", &LlamaModel::architecture)
        .def_prop_ro("n_vocab", &LlamaModel::vocab_size)
        .def_prop_ro("n_embd", &LlamaModel::embedding_size)
        .def_prop_ro("n_layer", &LlamaModel::layer_count)
        .def_prop_ro("n_ctx_train", &LlamaModel::train_context)
        .def_prop_ro("size_bytes", &LlamaModel::size_bytes)
        .def_prop_ro("is_recurrent", &LlamaModel::is_recurrent,
                     "Recurrent or hybrid: follows chains of drafts, no trees.")
        .def_prop_ro("next_layers", &LlamaModel::next_layers, "How many layers for further tokens (MTP) were loaded.")
        .def_prop_ro("can_draft", &LlamaModel::can_draft,
                     "False: llama.cpp cannot follow drafts with this architecture.")
        .def_prop_ro("chat_template",
                     [](const LlamaModel& model) {
                         const auto found = model.chat_template();
                         return found ? std::optional(text(*found)) : std::nullopt;
                     })
        .def_prop_ro("bos_text", [](const LlamaModel& model) { return text(model.bos_text()); })
        .def_prop_ro("eos_text", [](const LlamaModel& model) { return text(model.eos_text()); })
        .def_prop_ro(
            "has_heads", [](const LlamaModel& model) { return model.file().get_u32("medusa.version").has_value(); },
            "The file carries head tensors (single file).")
        .def_prop_ro(
            "gpu",
            [](const LlamaModel& model) {
                return ggml_backend_dev_type(model.output_device()) != GGML_BACKEND_DEVICE_TYPE_CPU;
            },
            "Weights were placed on a GPU device.")
        .def_prop_ro("backend", &LlamaModel::backend,
                     "Of the device that holds the output matrix, as ggml calls it: \"CPU\", \"CUDA\", \"ROCm\",\n"
                     "\"MTL\" (Metal), \"Vulkan\".")
        .def_prop_ro("device", &LlamaModel::device,
                     "That device, described by its backend: \"NVIDIA GeForce RTX 4090\".")
        .def_prop_ro("placement", &placement_of,
                     "Where the weights lie, by role, largest first; empty where the platform does not tell (Windows).")
        .def_prop_ro("devices", &devices_of,
                     "Which devices hold what, the CPU included; empty where the platform does not tell (Windows).");
    bind_tokenizer(type);
}

}  // namespace medusa
