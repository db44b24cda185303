#include "training/states.h"

#include "bindings/bindings.h"
#include "bindings/ndarray.h"

namespace medusa {
namespace {

nb::object matrix(const std::vector<float>& values, size_t rows) {
    if (values.empty()) return nb::none();
    return new_matrix<float>(values.data(), rows, values.size() / rows);
}

}  // namespace

void bind_states(nb::module_& m) {
    nb::class_<States>(m, "States")
        .def_ro("best", &States::best)
        .def_ro("last_logits", &States::last_logits)
        .def_prop_ro("after_layer", [](const States& s) { return matrix(s.after_layer, s.tokens); })
        .def_prop_ro("post_norm", [](const States& s) { return matrix(s.post_norm, s.tokens); });
    nb::class_<StatesReader>(m, "StatesReader")
        .def(nb::new_([](std::shared_ptr<LlamaModel> model, int longest, std::optional<int> tap_layer, bool outputs,
                         int n_threads) {
                 return std::make_unique<StatesReader>(std::move(model), longest, tap_layer, outputs,
                                                       resolve_threads(n_threads));
             }),
             "model"_a, "longest"_a, nb::kw_only(), "tap_layer"_a = nb::none(), "outputs"_a = false, "n_threads"_a = 0)
        .def(
            "read",
            [](StatesReader& reader, const std::vector<Token>& tokens) {
                const nb::gil_scoped_release released;
                return reader.read(tokens);
            },
            "tokens"_a);
}

}  // namespace medusa
