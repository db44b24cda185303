#include "testing/module.h"
#include "testing/pretended_device.h"

namespace medusa::testing {

void bind_device(nb::module_& m) {
    m.def("pretend_device", &pretend_device);
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
        "missing_operators"_a = std::vector<std::string>{});
    m.def("take_device_operators", &take_operators);
    m.def("take_device_counters", [] {
        const DeviceCounters counters = take_counters();
        nb::dict out;
        out["graphs"] = counters.graphs;
        out["to_device"] = counters.to_device;
        out["to_device_bytes"] = counters.to_device_bytes;
        out["to_host"] = counters.to_host;
        out["to_host_bytes"] = counters.to_host_bytes;
        out["waits"] = counters.waits;
        out["logits"] = counters.logits;
        return out;
    });
}

}  // namespace medusa::testing
