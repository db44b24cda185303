#include "llama/embedder.h"

#include <chrono>

#include "bindings/bindings.h"
#include "bindings/ndarray.h"

namespace medusa {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto between_calls = std::chrono::milliseconds(50);

NewMatrix<float> embed(Embedder& embedder, const std::vector<std::vector<Token>>& texts,
                       const Callback<std::optional<bool>()>& on_progress) {
    Callbacks call;
    StopPoll stop;
    if (!on_progress.is_none()) {
        stop = [&, called = Clock::now()]() mutable {
            if (Clock::now() - called < between_calls) return false;
            called = Clock::now();
            return !call([&] { return nb::object(on_progress()); });
        };
    }
    std::vector<float> rows;
    {
        const nb::gil_scoped_release released;
        rows = embedder.embed(texts, stop);
    }
    call.rethrow();
    const auto width = static_cast<size_t>(embedder.width());
    return new_matrix<float>(rows.data(), rows.size() / width, width);
}

}  // namespace

void bind_embedder(nb::module_& m) {
    nb::class_<Embedder>(m, "Embedder", "Makes embeddings of texts. One call at a time.")
        .def(
            nb::new_([](std::shared_ptr<LlamaModel> model, int n_ctx, int n_threads) {
                return std::make_unique<Embedder>(std::move(model), n_ctx, resolve_threads(n_threads));
            }),
            "model"_a, nb::kw_only(), "n_ctx"_a = 0, "n_threads"_a = 0,
            "model: loaded with embeds=True. n_ctx: most tokens of a text; 0: as many as the model was trained on, at\n"
            "most 8192.")
        .def_prop_ro("n_ctx", &Embedder::longest, "Most tokens of a text.")
        .def_prop_ro("width", &Embedder::width, "Numbers of an embedding.")
        .def(
            "embed", &embed, "texts"_a, nb::kw_only(), "on_progress"_a = nb::none(),
            "[texts, width] for token ids, float32; each row has length one. on_progress: called every 50 ms while it\n"
            "computes (on a processor); returning False ends that, and there are no rows then. NativeError for texts\n"
            "without tokens or with too many.");
}

}  // namespace medusa
