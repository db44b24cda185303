#include "probes/teacher_forcing.h"

#include "bindings/bindings.h"

namespace medusa {

void bind_teacher_forcing(nb::module_& m) {
    m.def(
        "teacher_forced",
        [](std::shared_ptr<LlamaModel> model, const std::vector<Token>& tokens, int prompt_length,
           const std::vector<std::vector<int>>& parents, const std::vector<std::vector<int>>& paths, int n_threads) {
            const nb::gil_scoped_release released;
            TeacherForced out =
                teacher_forced(std::move(model), tokens, prompt_length, parents, paths, resolve_threads(n_threads));
            return std::pair(std::move(out.tokens), std::move(out.last_logits));
        },
        "model"_a, "tokens"_a, nb::kw_only(), "prompt_length"_a, "parents"_a = std::vector<std::vector<int>>{},
        "paths"_a = std::vector<std::vector<int>>{}, "n_threads"_a = 0);
}

}  // namespace medusa
