// A pretended GPU, to test on any machine what a device requires of the engine: memory that the host cannot touch,
// graphs that are computed after their launch has returned, counted transfers, faults on demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace medusa::testing {

// How the device behaves from now on.
struct DeviceBehaviour {
    int64_t delay_us = 0;      // extra time for each graph
    bool delays_heads = true;  // false: only graphs of the model itself are delayed
    // (tokens, microseconds), ascending: a graph of the model over at most so many tokens takes at least so long, and
    // one over more than all of these as long as the last. Empty: each takes as long as computing it does.
    std::vector<std::pair<int64_t, int64_t>> passes_us;
    int64_t memory = int64_t{8} << 30;
    int64_t failing_allocation = 0;              // the n-th allocation from now on fails; 0: none
    int64_t failing_graph = 0;                   // so does the n-th graph
    bool lost = false;                           // and from then on all of them, by an exception, as on Vulkan
    std::vector<std::string> missing_operators;  // ggml's names ("ARGSORT") that the device does not have
};

struct DeviceCounters {
    size_t graphs = 0, to_device_bytes = 0, to_device = 0, to_host_bytes = 0, to_host = 0;
    size_t waits = 0;   // of the host, for work it had given to a stream
    size_t logits = 0;  // rows of logits that the model's graphs computed
};

// Adds the device to the process. Call it before the first model is loaded; further calls do nothing.
void pretend_device();
void set_behaviour(const DeviceBehaviour& behaviour);
// Since the last call.
DeviceCounters take_counters();
// Operators in graphs since the last call, each once: ggml's name and the type read; for copies, also the type written.
std::vector<std::string> take_operators();

}  // namespace medusa::testing
