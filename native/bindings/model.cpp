#include "bindings/bindings.h"
#include "llama_api.h"
#include "medusa_levels.h"
#include "ndarray.h"
#include "placement.h"
#include "platform.h"

namespace medusa {
namespace {

// Loading without the GIL; the progress callback takes it, and its exceptions abort the load and are passed on.
std::shared_ptr<LlamaModel> load_model(const std::string& path, int n_gpu_layers, bool repack,
                                       const nb::object& on_progress) {
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
        model = std::make_shared<LlamaModel>(path, n_gpu_layers, repack, progress);
    } catch (const Error&) {
        if (failure) std::rethrow_exception(failure);
        throw;
    }
    return model;
}

const char* lm_head_name(const Heads& heads) {
    switch (heads.lm_head()) {
        case LmHead::own:
            return "own";
        case LmHead::base:
            return "base";
        case LmHead::draft_vocab:
            return "draft_vocab";
    }
    return "";
}

std::span<const float> checked_state(const Heads& heads, const StateVector& hidden) {
    if (static_cast<int>(hidden.shape(0)) != heads.model().embedding_size()) {
        throw Error("hidden state has " + std::to_string(hidden.shape(0)) + " numbers, this model's have " +
                    std::to_string(heads.model().embedding_size()));
    }
    return {hidden.data(), hidden.shape(0)};
}

void bind_heads(nb::module_& m) {
    nb::class_<Heads>(m, "Heads")
        .def(
            "__init__",
            [](nb::pointer_and_handle<Heads> self, std::shared_ptr<LlamaModel> model, const std::string& path) {
                new (self.p) Heads(std::move(model), path);
            },
            "model"_a, "path"_a)
        .def_prop_ro("kind", &Heads::kind)
        .def_prop_ro("head_count", &Heads::head_count)
        .def_prop_ro("block_count", &Heads::block_count)
        .def_prop_ro("lm_head", &lm_head_name)
        .def_prop_ro("output_rows", &Heads::output_rows)
        .def_prop_ro("accuracy", &Heads::accuracy)
        .def_prop_ro("tree", &Heads::tree)
        .def_prop_ro("nbytes", &Heads::size_bytes)
        .def(
            "probabilities",
            [](std::shared_ptr<Heads> heads, const StateVector& hidden) {
                MedusaLevels levels(heads, heads->head_count(), physical_cores());
                const auto p = levels.evaluate(checked_state(*heads, hidden));
                return new_matrix<float>(p.data(), heads->head_count(), heads->output_rows());
            },
            "hidden"_a)
        .def(
            "draft_tokens",
            [](std::shared_ptr<Heads> heads, const StateVector& hidden, int ranks) {
                if (ranks < 1 || ranks > heads->output_rows()) throw Error("ranks must be within 1..output_rows");
                MedusaLevels levels(heads, heads->head_count(), physical_cores());
                levels.evaluate(checked_state(*heads, hidden));
                std::vector<std::vector<Token>> out(heads->head_count());
                std::vector<int> rows;
                for (int head = 0; head < heads->head_count(); ++head) {
                    levels.top(head, ranks, rows);
                    for (const int row : rows) out[head].push_back(heads->token(row));
                }
                return out;
            },
            "hidden"_a, "ranks"_a);
}

}  // namespace

int resolve_threads(int threads) {
    return threads > 0 ? threads : physical_cores();
}

void bind_model(nb::module_& m) {
    nb::class_<LlamaModel>(m, "Model")
        .def(nb::new_(&load_model), "path"_a, nb::kw_only(), "n_gpu_layers"_a = -1, "repack"_a = true,
             "on_progress"_a = nb::none())
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
        .def_prop_ro("chat_template", &LlamaModel::chat_template)
        .def_prop_ro("bos_text", &LlamaModel::bos_text)
        .def_prop_ro("eos_text", &LlamaModel::eos_text)
        .def_prop_ro("add_bos", &LlamaModel::adds_bos)
        .def_prop_ro("has_heads",
                     [](const LlamaModel& model) { return model.file().get_u32("medusa.version").has_value(); })
        .def_prop_ro("gpu",
                     [](const LlamaModel& model) {
                         return ggml_backend_dev_type(model.output_device()) != GGML_BACKEND_DEVICE_TYPE_CPU;
                     })
        .def_prop_ro("placement", &placement_of)
        .def("tokenize", &LlamaModel::tokenize, "text"_a, nb::kw_only(), "add_special"_a = true,
             "parse_special"_a = true)
        .def(
            "detokenize",
            [](const LlamaModel& model, const std::vector<Token>& tokens, bool special) {
                const std::string text = model.detokenize(tokens, special);
                return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
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
    bind_heads(m);
}

}  // namespace medusa
