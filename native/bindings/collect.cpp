#include "training/collect.h"

#include "bindings/bindings.h"
#include "bindings/ndarray.h"

namespace medusa {
namespace {

using StatesArray = std::optional<NewMatrix<Half>>;
using OnSequence = nb::typed<nb::callable, std::optional<bool>(int, nb::typed<nb::list, int>, StatesArray)>;
using OnProgress = Callback<std::optional<bool>(int)>;
using OnPartialText = Callback<std::optional<bool>(int, nb::typed<nb::list, int>)>;

StatesArray states_array(const Continuation& done) {
    if (done.states.empty()) return std::nullopt;
    const size_t rows = done.tokens.size();
    return new_matrix<Half>(done.states.data(), rows, done.states.size() / rows);
}

void run_collect(std::shared_ptr<LlamaModel> model, const std::vector<std::vector<Token>>& prompts,
                 const std::vector<float>& temperatures, int max_tokens, int n_parallel, uint64_t seed, int n_threads,
                 bool hidden, const OnSequence& on_sequence, const OnProgress& on_progress,
                 const OnPartialText& on_partial) {
    const CollectParams params{max_tokens, n_parallel, seed, resolve_threads(n_threads), hidden};
    Callbacks call;
    const auto done = [&](const Continuation& c) {
        return call([&] { return nb::object(on_sequence(c.index, c.tokens, states_array(c))); });
    };
    const auto progress = [&](uint64_t tokens) {
        return call([&] { return on_progress.is_none() ? nb::none() : nb::object(on_progress(tokens)); });
    };
    OnPartial partial;
    if (!on_partial.is_none()) {
        partial = [&](const Continuation& c) {
            return call([&] { return nb::object(on_partial(c.index, c.tokens)); });
        };
    }
    {
        const nb::gil_scoped_release released;
        collect(std::move(model), prompts, temperatures, params, done, progress, partial);
    }
    call.rethrow();
}

constexpr const char* collect_doc =
    "Generates one continuation per prompt, n_parallel at a time (training data).\n\n"
    "on_sequence(index, tokens, states): tokens are the generated ids (the end-of-generation token included when it\n"
    "came), states [len(tokens), n_embd]: states[i] is the post-norm hidden state from which tokens[i] was sampled,\n"
    "so head k (1-based) learns states[i] -> tokens[i + k]. Returning False ends the run. on_progress(total tokens\n"
    "so far): returning False ends it once on_sequence got what there is of the continuations under way.\n"
    "on_partial(index, tokens so far), after every 32 tokens of a continuation: returning False ends that one.\n"
    "Sampling: temperature, top-k 40, top-p 0.95, min-p 0.05; temperature 0 is argmax.";

}  // namespace

void bind_collect(nb::module_& m) {
    m.def("collect", &run_collect, "model"_a, "prompts"_a, "temperatures"_a, nb::kw_only(), "max_tokens"_a,
          "n_parallel"_a = 32, "seed"_a = 0, "n_threads"_a = 0, "hidden"_a = true, "on_sequence"_a,
          "on_progress"_a = nb::none(), "on_partial"_a = nb::none(), collect_doc);
}

}  // namespace medusa
