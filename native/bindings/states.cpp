#include "training/states.h"

#include "bindings/bindings.h"
#include "bindings/ndarray.h"

namespace medusa {
namespace {

std::optional<NewMatrix<float>> matrix(const std::vector<float>& values, size_t rows) {
    if (values.empty()) return std::nullopt;
    return new_matrix<float>(values.data(), rows, values.size() / rows);
}

}  // namespace

void bind_states(nb::module_& m) {
    nb::class_<States>(m, "States", "What a model computes for a text of T tokens, float32.")
        .def_ro("best", &States::best, "The argmax after each token that has outputs.")
        .def_ro("last_logits", &States::last_logits, "Behind the last token.")
        // The arrays own their numbers: they do not refer to the object, which a property's policy would keep alive.
        .def_prop_ro(
            "after_layers", [](const States& s) { return matrix(s.after_layers, s.tokens); }, nb::rv_policy::automatic,
            "[T, layers * n_embd] states after the tapped layers, side by side; None without one.")
        .def_prop_ro(
            "post_norm", [](const States& s) { return matrix(s.post_norm, s.best.size()); }, nb::rv_policy::automatic,
            "[outputs, n_embd] states after the final norm; None, as best and last_logits are empty, where no outputs\n"
            "are asked.");
    nb::class_<StatesReader>(m, "StatesReader", "Reads one text after another, each from an empty cache.")
        .def(nb::new_([](std::shared_ptr<LlamaModel> model, int longest, std::vector<int> tap_layers, bool outputs,
                         int n_threads) {
                 return std::make_unique<StatesReader>(std::move(model), longest, std::move(tap_layers), outputs,
                                                       resolve_threads(n_threads));
             }),
             "model"_a, "longest"_a, nb::kw_only(), "tap_layers"_a = std::vector<int>(), "outputs"_a = false,
             "n_threads"_a = 0,
             "longest: most tokens of a text. tap_layers: from 0, not the last one. outputs: also what the final\n"
             "norm and the output matrix give, for which each token pays. NativeError where a layer cannot be\n"
             "read.")
        .def(
            "read",
            [](StatesReader& reader, const std::vector<Token>& tokens, int outputs_from) {
                const nb::gil_scoped_release released;
                return reader.read(tokens, outputs_from);
            },
            "tokens"_a, "outputs_from"_a = 0, "outputs_from: the first token that has outputs, where they are asked.");
}

}  // namespace medusa
