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
        "paths"_a = std::vector<std::vector<int>>{}, "n_threads"_a = 0,
        "The model's argmax after tokens[:i] for i in prompt_length .. len(tokens), and its logits after all of\n"
        "them.\n\n"
        "Step i verifies the tree of parents[i] with the next tokens on the nodes of paths[i] and fillers on the\n"
        "others; where these have ended, it decodes plainly. With `parents` and `paths` of a Generation it repeats\n"
        "the batch widths and the cache layout without the drafts and their acceptance (docs/design.md, Lossless:\n"
        "tier 3).");
}

}  // namespace medusa
