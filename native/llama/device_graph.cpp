#include "llama/device_graph.h"

#include <string>

#include "base/common.h"
#include "llama/backend.h"

namespace medusa {
namespace {

Error unsupported(const ggml_tensor* node, ggml_backend_t backend) {
    const std::string name = ggml_backend_name(backend), op = ggml_op_desc(node);
    if (node->op == GGML_OP_MUL_MAT) {
        return Error(name + " cannot multiply with the heads' " + ggml_type_name(node->src[0]->type) + " matrices",
                     "convert them to f16 or q8_0, or use {no_spec}");
    }
    return Error(name + " does not support " + op + ", which the heads need", "use {no_spec} or {device} none");
}

}  // namespace

ggml_backend_ptr start_backend(ggml_backend_dev_t device) {
    ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    if (!backend) throw Error(std::string("cannot start the device ") + ggml_backend_dev_name(device));
    return backend;
}

DeviceGraph::DeviceGraph(ggml_backend_t backend, size_t most_tensors) : backend_(backend) {
    const size_t size = most_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(most_tensors, false);
    context_.reset(ggml_init({size, nullptr, /*no_alloc=*/true}));
    graph_ = ggml_new_graph_custom(context(), most_tensors, false);
}

ggml_tensor* DeviceGraph::new_input(int64_t columns, int64_t rows, ggml_type type) {
    ggml_tensor* input = ggml_new_tensor_2d(context(), type, columns, rows);
    ggml_set_input(input);
    return input;
}

void DeviceGraph::finish(ggml_tensor* output) {
    output_ = output;
    ggml_set_output(output);
    ggml_build_forward_expand(graph_, output);
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        if (!ggml_backend_supports_op(backend_, ggml_graph_node(graph_, i))) {
            throw unsupported(ggml_graph_node(graph_, i), backend_);
        }
    }
    allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_)));
    if (!ggml_gallocr_alloc_graph(allocator_.get(), graph_))
        throw OutOfMemory("no memory to evaluate the heads", memory_remedy(ggml_backend_get_device(backend_)));
}

void DeviceGraph::set(ggml_tensor* input, std::span<const float> values) {
    ggml_backend_tensor_set(input, values.data(), 0, values.size_bytes());
}

std::span<const float> DeviceGraph::compute() {
    const auto failed = [&](const char* reason) {
        return Error(std::string("evaluating the heads on ") + ggml_backend_name(backend_) + " failed" + reason,
                     "run with {no_spec}");
    };
    ggml_status status;
    try {
        status = ggml_backend_graph_compute(backend_, graph_);
    } catch (const std::exception& lost) {  // how Vulkan reports that the device is lost
        throw failed((std::string(" (") + lost.what() + ")").c_str());
    }
    if (status != GGML_STATUS_SUCCESS) throw failed("");
    const auto count = static_cast<size_t>(ggml_nelements(output_));
    if (ggml_backend_buffer_is_host(output_->buffer)) return {static_cast<const float*>(output_->data), count};
    copy_.resize(count);
    ggml_backend_tensor_get(output_, copy_.data(), 0, copy_.size() * sizeof(float));
    return copy_;
}

}  // namespace medusa
