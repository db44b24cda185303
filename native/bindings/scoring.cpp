#include "probes/scoring.h"

#include "bindings/bindings.h"

namespace medusa {

void bind_scoring(nb::module_& m) {
    m.def(
        "score",
        [](std::shared_ptr<LlamaModel> model, const std::vector<Token>& tokens, int width, int n_threads) {
            const nb::gil_scoped_release released;
            Scores out = score(std::move(model), tokens, width, resolve_threads(n_threads));
            return std::pair(std::move(out.best), std::move(out.costs));
        },
        "model"_a, "tokens"_a, nb::kw_only(), "width"_a = 64, "n_threads"_a = 0,
        "Decodes a text `width` tokens at a time (1..512; the last pass takes what is left), from an empty cache.\n\n"
        "Returns the model's argmax after each token, and -ln p of each token but the first, given those before it.");
}

}  // namespace medusa
