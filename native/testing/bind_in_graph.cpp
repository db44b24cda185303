#include "bindings/session_binding.h"
#include "heads/graph.h"
#include "in_graph/acceptance.h"
#include "in_graph/named_rows.h"
#include "in_graph/rows.h"
#include "llama/target.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr size_t most_tensors = 128;

// On a device, or on the CPU if none is given.
ggml_backend_ptr start(const std::optional<std::string>& device) {
    ggml_backend_dev_t found =
        device ? ggml_backend_dev_by_name(device->c_str()) : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!found) throw Error("there is no device " + device.value_or("CPU"));
    return ggml_backend_ptr(ggml_backend_dev_init(found, nullptr));
}

std::span<const float> numbers(const Rows& rows) {
    return {rows.data(), rows.size()};
}

std::vector<std::optional<std::pair<int, Token>>> accept_in_graph(const Tree& tree, const std::vector<Rows>& logits,
                                                                  const std::vector<std::vector<Token>>& tokens,
                                                                  const std::optional<std::string>& device) {
    const ggml_backend_ptr backend = start(device);
    DeviceGraph graph(backend.get(), most_tensors);
    ggml_context* c = graph.context();
    ggml_tensor* input = graph.new_input(static_cast<int64_t>(logits.at(0).shape(1)), tree.size());
    in_graph::TreeInput tree_input(c, tree.size());
    const in_graph::GreedyAcceptance found = in_graph::accept_greedily(c, input, tree_input);
    graph.finish(ggml_concat(c, ggml_concat(c, found.node, found.next, 0), found.number_rows, 0));
    std::vector<std::optional<std::pair<int, Token>>> out;
    for (size_t i = 0; i < logits.size(); ++i) {
        DeviceGraph::set(input, numbers(logits[i]));
        tree_input.set(tree, tokens.at(i));
        const auto result = graph.compute();
        const bool sound = static_cast<int>(result[2]) == tree.size();
        out.push_back(sound ? std::optional(std::pair(static_cast<int>(result[0]), static_cast<Token>(result[1])))
                            : std::nullopt);
    }
    return out;
}

NewMatrix<float> largest_in_graph(const Rows& rows, int64_t count, const std::optional<std::string>& device) {
    const ggml_backend_ptr backend = start(device);
    DeviceGraph graph(backend.get(), most_tensors);
    ggml_tensor* input = graph.new_input(static_cast<int64_t>(rows.shape(1)), static_cast<int64_t>(rows.shape(0)));
    graph.finish(in_graph::largest(graph.context(), input, count));
    DeviceGraph::set(input, numbers(rows));
    return new_matrix<float>(graph.compute().data(), rows.shape(0), static_cast<size_t>(count));
}

std::vector<std::vector<std::pair<Token, float>>> ranked_in_graph(const Rows& rows) {
    const ggml_backend_ptr backend = start(std::nullopt);
    DeviceGraph graph(backend.get(), most_tensors);
    ggml_tensor* input = graph.new_input(static_cast<int64_t>(rows.shape(1)), static_cast<int64_t>(rows.shape(0)));
    graph.finish(in_graph::RankedRows::build(graph.context(), input));
    DeviceGraph::set(input, numbers(rows));
    in_graph::RankedRows ranked;
    const auto count = static_cast<int>(rows.shape(0));
    ranked.read(graph.compute(), count);
    std::vector<std::vector<std::pair<Token, float>>> out(rows.shape(0));
    for (int row = 0; row < count; ++row) {
        for (const RankedToken& token : ranked.row(row)) {
            out[static_cast<size_t>(row)].emplace_back(token.token, token.logit);
        }
    }
    return out;
}

}  // namespace

void bind_in_graph(nb::module_& m) {
    m.def(
        "reused_graphs",
        [](SessionBinding& session) {
            return dynamic_cast<LlamaTarget&>(session.idle_session().target()).reused_graphs();
        },
        "session"_a, "Decodes of a model's session whose graph was that of the decode before.");
    m.def("accept_in_graph", &accept_in_graph, "tree"_a, "logits"_a, "tokens"_a, "device"_a = nb::none(),
          "Greedy acceptance as the model's graph does it: (deepest accepted node, token after it).\n\n"
          "Of each logits [nodes, vocabulary] and tokens by themselves. None where a row holds NaN. device: None\n"
          "for the CPU.");
    m.def("ranked_in_graph", &ranked_in_graph, "rows"_a,
          "Of each row the likeliest tokens and their logits; empty where NaN or equals leave them open.");
    m.def("largest_in_graph", &largest_in_graph, "rows"_a, "count"_a, "device"_a = nb::none(),
          "Places of the `count` largest numbers of each row, largest first.");
}

}  // namespace medusa::testing
