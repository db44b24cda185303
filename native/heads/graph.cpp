#include "heads/graph.h"

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

ggml_backend_ptr start_backend(const Heads& heads) {
    ggml_backend_ptr backend(ggml_backend_dev_init(heads.device(), nullptr));
    if (!backend) throw Error(std::string("cannot start the device ") + ggml_backend_dev_name(heads.device()));
    return backend;
}

HeadsGraph::HeadsGraph(ggml_backend_t backend, size_t most_tensors) : backend_(backend) {
    const size_t size = most_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(most_tensors, false);
    context_.reset(ggml_init({size, nullptr, /*no_alloc=*/true}));
    graph_ = ggml_new_graph_custom(context(), most_tensors, false);
}

ggml_tensor* HeadsGraph::new_input(int64_t columns, int64_t rows, ggml_type type) {
    ggml_tensor* input = ggml_new_tensor_2d(context(), type, columns, rows);
    ggml_set_input(input);
    return input;
}

void HeadsGraph::finish(ggml_tensor* output) {
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
        throw OutOfMemory("no memory to evaluate the heads", "lower {n_gpu_layers}");
}

void HeadsGraph::set(ggml_tensor* input, std::span<const float> values) {
    ggml_backend_tensor_set(input, values.data(), 0, values.size_bytes());
}

std::span<const float> HeadsGraph::compute() {
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

ggml_tensor* linear(ggml_context* c, const Linear& layer, ggml_tensor* x) {
    ggml_tensor* y = ggml_mul_mat(c, layer.weight, x);
    return layer.bias ? ggml_add(c, y, layer.bias) : y;
}

ggml_tensor* residual_block(ggml_context* c, const Linear& layer, ggml_tensor* x) {
    return ggml_add(c, ggml_silu(c, linear(c, layer, x)), x);
}

namespace {

// The last state of each head, [h]; one [h, depth] for all heads where they are computed together anyway.
std::vector<ggml_tensor*> last_states(ggml_context* c, const Heads& heads, ggml_tensor* state, int depth) {
    if (heads.block_count() == 0) return std::vector<ggml_tensor*>(static_cast<size_t>(depth), state);
    const int64_t h = state->ne[0];
    // One input for all heads: the stacked weights are one matrix of h rows per head.
    Linear first = heads.first_blocks();
    first.weight = ggml_view_2d(c, first.weight, h, h * depth, first.weight->nb[1], 0);
    if (first.bias) first.bias = ggml_view_1d(c, first.bias, h * depth, 0);
    ggml_tensor* y = ggml_silu(c, linear(c, first, state));
    ggml_tensor* all = ggml_add(c, ggml_reshape_2d(c, y, h, depth), state);
    std::vector<ggml_tensor*> out;
    for (int head = 0; head < depth; ++head) {
        ggml_tensor* x = ggml_view_2d(c, all, h, 1, all->nb[1], static_cast<size_t>(head) * all->nb[1]);
        for (int block = 1; block < heads.block_count(); ++block) {
            x = residual_block(c, heads.block(head, block), x);
        }
        out.push_back(x);
    }
    if (heads.block_count() == 1 && !heads.has_own_outputs()) return {all};
    return out;
}

}  // namespace

ggml_tensor* medusa_logits(ggml_context* c, const Heads& heads, ggml_tensor* state, int depth) {
    const std::vector<ggml_tensor*> x = last_states(c, heads, state, depth);
    const auto joined = [&](const std::vector<ggml_tensor*>& parts) {
        ggml_tensor* all = parts.front();
        for (size_t i = 1; i < parts.size(); ++i) all = ggml_concat(c, all, parts[i], 1);
        return all;
    };
    if (!heads.has_own_outputs()) return linear(c, heads.output(0), joined(x));
    std::vector<ggml_tensor*> parts;
    for (int head = 0; head < depth; ++head) {
        parts.push_back(linear(c, heads.output(head), x[static_cast<size_t>(head)]));
    }
    return joined(parts);
}

size_t medusa_tensors(const Heads& heads, int depth) {
    return 16 + static_cast<size_t>(depth) * (8 + 4 * static_cast<size_t>(heads.block_count()));
}

ggml_tensor* hydra_logits(ggml_context* c, const Heads& heads, int head, ggml_tensor* paths) {
    const int64_t h = heads.model().embedding_size(), n = paths->ne[1];
    // SiLU(Wx + b) + (Rx + b_R): W and R in one product, R's rows below W's.
    ggml_tensor* y = linear(c, heads.first_block(head), paths);
    ggml_tensor* gate = ggml_cont(c, ggml_view_2d(c, y, h, n, y->nb[1], 0));  // CUDA's SiLU wants it contiguous
    ggml_tensor* kept = ggml_view_2d(c, y, h, n, y->nb[1], static_cast<size_t>(h) * sizeof(float));
    ggml_tensor* x = ggml_add(c, ggml_silu(c, gate), kept);
    for (int block = 1; block < heads.block_count(); ++block) x = residual_block(c, heads.block(head, block), x);
    return linear(c, heads.output(head), x);
}

size_t hydra_width(size_t nodes) {
    constexpr size_t exact = 8, step = 8;
    return nodes <= exact ? nodes : (nodes + step - 1) / step * step;
}

size_t hydra_tensors(const Heads& heads) {
    return 16 + 4 * static_cast<size_t>(heads.block_count());
}

}  // namespace medusa
