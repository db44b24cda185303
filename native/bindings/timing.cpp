#include "timing.h"

#include "bindings/bindings.h"

namespace medusa {

void bind_timing(nb::module_& m) {
    const auto bind = [&m](const char* name, auto* time) {
        m.def(
            name,
            [time](std::shared_ptr<LlamaModel> model, int width, int position, int repeats, int n_threads) {
                const nb::gil_scoped_release released;
                return time(std::move(model), width, TimingParams{position, repeats, resolve_threads(n_threads)});
            },
            "model"_a, "width"_a, nb::kw_only(), "position"_a = 64, "repeats"_a = 5, "n_threads"_a = 0);
    };
    bind("time_verify", &time_verify);
    bind("time_prefill", &time_prefill);
}

}  // namespace medusa
