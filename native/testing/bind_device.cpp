#include "testing/module.h"
#include "testing/pretended_device.h"

namespace medusa::testing {

namespace {

std::map<std::string, size_t> take_device_counters() {
    const DeviceCounters counters = take_counters();
    return {{"graphs", counters.graphs},
            {"to_device", counters.to_device},
            {"to_device_bytes", counters.to_device_bytes},
            {"to_host", counters.to_host},
            {"to_host_bytes", counters.to_host_bytes},
            {"waits", counters.waits},
            {"logits", counters.logits}};
}

constexpr const char* set_device_doc =
    "How it behaves from now on.\n\n"
    "delay_us: that each graph takes more, those of heads only where delays_heads. passes_us: (tokens,\n"
    "microseconds), ascending: a graph of the model over at most so many tokens takes at least so long. memory:\n"
    "bytes it has. failing_allocation, failing_graph: the n-th one from now on fails (0: none). lost: all graphs\n"
    "from then on do. missing_operators: ggml's names.";

}  // namespace

void bind_device(nb::module_& m) {
    m.def("pretend_device", &pretend_device,
          "Adds a GPU that is none to the process. Before the first model is loaded; NativeError on Windows.");
    m.def(
        "set_device",
        [](int64_t delay_us, bool delays_heads, std::vector<std::pair<int64_t, int64_t>> passes_us, int64_t memory,
           int64_t failing_allocation, int64_t failing_graph, bool lost, std::vector<std::string> missing_operators) {
            set_behaviour({delay_us, delays_heads, std::move(passes_us), memory, failing_allocation, failing_graph,
                           lost, std::move(missing_operators)});
        },
        nb::kw_only(), "delay_us"_a = 0, "delays_heads"_a = true,
        "passes_us"_a = std::vector<std::pair<int64_t, int64_t>>{}, "memory"_a = DeviceBehaviour().memory,
        "failing_allocation"_a = 0, "failing_graph"_a = 0, "lost"_a = false,
        "missing_operators"_a = std::vector<std::string>{}, set_device_doc);
    m.def("take_device_operators", &take_operators,
          "Operators of graphs since the last call, each once: \"ADD f32\", of copies \"CPY f32 i32\".");
    m.def("take_device_counters", &take_device_counters, "Since the last call; logits: rows.");
}

}  // namespace medusa::testing
