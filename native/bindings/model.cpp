#include "llama/model.h"
#include "base/platform.h"
#include "bindings/bindings.h"
#include "probes/placement.h"

namespace medusa {
namespace {

// Loading without the GIL; the progress callback takes it, and its exceptions abort the load and are passed on.
std::shared_ptr<LlamaModel> load_model(const std::string& path, int n_gpu_layers, bool repack,
                                       const nb::object& on_progress,
                                       const std::optional<std::vector<std::string>>& devices) {
    std::exception_ptr failure;
    LoadProgress progress;
    if (!on_progress.is_none()) {
        progress = [&](float done) {
            const nb::gil_scoped_acquire gil;
            try {
                nb::object go_on = on_progress(done);
                return go_on.is_none() || nb::cast<bool>(go_on);
            } catch (...) {
                failure = std::current_exception();
                return false;
            }
        };
    }
    std::shared_ptr<LlamaModel> model;
    try {
        const nb::gil_scoped_release released;
        model = std::make_shared<LlamaModel>(path, n_gpu_layers, repack, progress, devices);
    } catch (const Error&) {
        if (failure) std::rethrow_exception(failure);
        throw;
    }
    return model;
}

}  // namespace

Threads resolve_threads(int threads) {
    return {threads > 0 ? threads : physical_cores(), threads <= 0};
}

void bind_model(nb::module_& m) {
    nb::class_<LlamaModel>(m, "Model")
        .def(nb::new_(&load_model), "path"_a, nb::kw_only(), "n_gpu_layers"_a = -1, "repack"_a = true,
             "on_progress"_a = nb::none(), "devices"_a = nb::none())
        .def_prop_ro("path", &LlamaModel::path)
        .def_prop_ro("description", &LlamaModel::description)
        .def_prop_ro("architecture", &LlamaModel::architecture)
        .def_prop_ro("n_vocab", &LlamaModel::vocab_size)
        .def_prop_ro("n_embd", &LlamaModel::embedding_size)
        .def_prop_ro("n_layer", &LlamaModel::layer_count)
        .def_prop_ro("n_ctx_train", &LlamaModel::train_context)
        .def_prop_ro("n_params", &LlamaModel::parameter_count)
        .def_prop_ro("size_bytes", &LlamaModel::size_bytes)
        .def_prop_ro("is_recurrent", &LlamaModel::is_recurrent)
        .def_prop_ro("can_draft", &LlamaModel::can_draft)
        .def_prop_ro("chat_template",
                     [](const LlamaModel& model) {
                         const auto found = model.chat_template();
                         return found ? text(*found) : nb::none();
                     })
        .def_prop_ro("bos_text", [](const LlamaModel& model) { return text(model.bos_text()); })
        .def_prop_ro("eos_text", [](const LlamaModel& model) { return text(model.eos_text()); })
        .def_prop_ro("add_bos", &LlamaModel::adds_bos)
        .def_prop_ro("has_heads",
                     [](const LlamaModel& model) { return model.file().get_u32("medusa.version").has_value(); })
        .def_prop_ro("gpu",
                     [](const LlamaModel& model) {
                         return ggml_backend_dev_type(model.output_device()) != GGML_BACKEND_DEVICE_TYPE_CPU;
                     })
        .def_prop_ro("backend", &LlamaModel::backend)
        .def_prop_ro("device", &LlamaModel::device)
        .def_prop_ro("placement", &placement_of)
        .def_prop_ro("devices", &devices_of)
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

}  // namespace medusa
