#include "heads/graph.h"

namespace medusa {
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

ggml_tensor* cell_states(ggml_context* c, const Heads& heads, ggml_tensor* parents, ggml_tensor* embeddings) {
    constexpr float norm_eps = 1e-5f;
    const RecurrentCell& cell = heads.cell();
    ggml_tensor* normed =
        ggml_concat(c, ggml_rms_norm(c, parents, norm_eps), ggml_rms_norm(c, embeddings, norm_eps), 0);
    ggml_tensor* gate_up = linear(c, cell.gate_up, normed);
    const int64_t inner = gate_up->ne[0] / 2, n = gate_up->ne[1];
    // CUDA's SiLU wants it contiguous
    ggml_tensor* gate = ggml_cont(c, ggml_view_2d(c, gate_up, inner, n, gate_up->nb[1], 0));
    ggml_tensor* up = ggml_view_2d(c, gate_up, inner, n, gate_up->nb[1], static_cast<size_t>(inner) * sizeof(float));
    ggml_tensor* added = linear(c, cell.down, ggml_mul(c, ggml_silu(c, gate), up));
    return ggml_add(c, linear(c, cell.residual, ggml_concat(c, parents, embeddings, 0)), added);
}

size_t level_width(size_t nodes) {
    constexpr size_t exact = 8, step = 8;
    return nodes <= exact ? nodes : (nodes + step - 1) / step * step;
}

size_t hydra_tensors(const Heads& heads) {
    return 16 + 4 * static_cast<size_t>(heads.block_count());
}

}  // namespace medusa
