#include "probes/verify_timing.h"

#include <cstring>

#include "bindings/bindings.h"
#include "kernels/buffer_type.h"
#include "kernels/limits.h"
#include "probes/product_timing.h"

namespace medusa {
namespace {

std::unique_ptr<VerifyTimer> make_timer(std::shared_ptr<LlamaModel> model, int widest, int position, int n_ctx,
                                        bool hidden, std::optional<int> tap_layer, int n_threads) {
    Callbacks call;
    const StopPoll poll = [&] { return !call([] { return nb::none(); }); };
    try {
        const nb::gil_scoped_release released;
        return std::make_unique<VerifyTimer>(std::move(model), widest, position, n_ctx, resolve_threads(n_threads),
                                             hidden, tap_layer, poll);
    } catch (const Error&) {
        call.rethrow();
        throw;
    }
}

// More than any laptop's last-level cache, so that all of it comes from memory.
constexpr size_t memory_bytes = size_t{1} << 28;

std::tuple<double, std::optional<double>, std::optional<double>> machine_limits(int n_threads, int rounds) {
    double bandwidth = 0, peak = 0, float_peak = 0;
    {
        const nb::gil_scoped_release released;
        lab::Team team(resolve_threads(n_threads).most);
        const lab::Memory memory(memory_bytes);
        std::memset(memory.data, 1, memory.size);
        bandwidth = lab::bandwidth(team, memory, rounds);
        if (const kernels::Kernels* selected = kernels::status().selected) {
            peak = lab::peak(team, *selected, rounds), float_peak = lab::float_peak(team, *selected, rounds);
        }
    }
    const auto known = [](double value) { return value > 0 ? std::optional(value) : std::nullopt; };
    return {bandwidth, known(peak), known(float_peak)};
}

constexpr const char* machine_limits_doc =
    "What the kernels are judged by: bytes per second read from memory, and multiplications per second in\n"
    "registers, of bytes (matrices) and of floats (attention).\n\n"
    "The best of all rounds, all threads together. The latter two are of the selected kernels' instruction set;\n"
    "None where they are not known.";

constexpr const char* timer_doc =
    "widest: up to 256. n_ctx: size of the cache, which alone changes the cost: give that of the sessions (0: as\n"
    "small as it can be). hidden: the passes give hidden states, too, as those of a drafting session do; with\n"
    "tap_layer those after that layer, which are read within the time.";

}  // namespace

void bind_timing(nb::module_& m) {
    nb::class_<ProductTimes>(m, "ProductTimes")
        .def_ro("nbytes", &ProductTimes::bytes, "Of all matrices of the type, in the type's own layout.")
        .def_ro("products", &ProductTimes::products, "Multiply-adds for one column.")
        .def_ro("ms", &ProductTimes::ms, "Of each pass over all of them.");
    m.def(
        "time_products",
        [](const LlamaModel& model, const std::string& type, int columns, int repeats, int n_threads) {
            return time_products(model, type, columns, repeats, resolve_threads(n_threads).most);
        },
        "model"_a, "type"_a, "columns"_a, nb::kw_only(), "repeats"_a = 3, "n_threads"_a = 0,
        nb::call_guard<nb::gil_scoped_release>(),
        "Every 2-D matrix of `type` times `columns` random columns, with the kernels that a forward pass uses.");
    m.def("machine_limits", &machine_limits, nb::kw_only(), "n_threads"_a = 0, "rounds"_a = 3, machine_limits_doc);
    nb::class_<VerifyTimer>(m, "VerifyTimer",
                            "Forward passes of several widths behind the same `position` tokens, which are decoded\n"
                            "once (at construction).")
        .def(nb::new_(&make_timer), "model"_a, "widest"_a, nb::kw_only(), "position"_a = 64, "n_ctx"_a = 0,
             "hidden"_a = true, "tap_layer"_a = nb::none(), "n_threads"_a = 0, timer_doc)
        .def("time", &VerifyTimer::time, "width"_a, nb::kw_only(), "passes"_a = 3,
             nb::call_guard<nb::gil_scoped_release>(),
             "Milliseconds of each of `passes` passes in a row over a root and width - 1 leaves; the first is\n"
             "slower where the width changed.");
}

}  // namespace medusa
