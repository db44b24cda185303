#include "kernels/operators.h"

#include <cstring>

#include "kernels/ggml_internals.h"

namespace medusa::kernels {

namespace {

// Rows of a tensor that may be broadcast to more matrices than it has.
const char* row_of(const ggml_tensor* x, int64_t i1, int64_t i2, int64_t i3) {
    return static_cast<const char*>(x->data) + static_cast<size_t>(i1) * x->nb[1] + static_cast<size_t>(i2) * x->nb[2] +
           static_cast<size_t>(i3) * x->nb[3];
}

class DotProducts final : public ggml_cpu::tensor_traits {
  public:
    bool work_size(int, const ggml_tensor* op, size_t& size) override {
        const ggml_type type = cpu_backend()->type_traits(op->src[0]->type)->vec_dot_type;
        size = ggml_row_size(type, op->src[1]->ne[0]) * static_cast<size_t>(ggml_nrows(op->src[1]));
        return true;
    }

    bool compute_forward(ggml_compute_params* params, ggml_tensor* op) override {
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        const ggml_type_traits_cpu& traits = *cpu_backend()->type_traits(w->type);
        const size_t column_bytes = ggml_row_size(traits.vec_dot_type, x->ne[0]);
        const auto column = [&](int64_t i) {
            return static_cast<char*>(params->wdata) + static_cast<size_t>(i) * column_bytes;
        };
        const auto convert = cpu_backend()->type_traits(traits.vec_dot_type)->from_float;
        for (int64_t i = params->ith; i < ggml_nrows(x); i += params->nth) {
            const char* from = row_of(x, i % x->ne[1], i / x->ne[1] % x->ne[2], i / x->ne[1] / x->ne[2]);
            convert(reinterpret_cast<const float*>(from), column(i), x->ne[0]);
        }
        cpu_backend()->barrier(params->threadpool);
        const int64_t begin = w->ne[1] * params->ith / params->nth, end = w->ne[1] * (params->ith + 1) / params->nth;
        const auto add = [&](const char* weights, int64_t row, int64_t i, int64_t i1, int64_t i2, int64_t i3) {
            auto* to = reinterpret_cast<float*>(const_cast<char*>(row_of(op, i1, i2, i3))) + row;
            traits.vec_dot(static_cast<int>(x->ne[0]), to, 0, weights, 0, column(i), 0, 1);
        };
        if (op->op == GGML_OP_MUL_MAT_ID) {
            const ggml_tensor* ids = op->src[2];
            for (int64_t i = 0; i < ids->ne[0] * ids->ne[1]; ++i) {
                const int64_t slot = i % ids->ne[0], token = i / ids->ne[0];
                int32_t expert;
                std::memcpy(&expert, row_of(ids, token, 0, 0) + static_cast<size_t>(slot) * ids->nb[0], sizeof(expert));
                for (int64_t row = begin; row < end; ++row) {
                    add(row_of(w, row, expert, 0), row, token * x->ne[1] + slot % x->ne[1], slot, token, 0);
                }
            }
            return true;
        }
        for (int64_t matrix = 0; matrix < x->ne[2] * x->ne[3]; ++matrix) {
            const int64_t i2 = matrix % x->ne[2], i3 = matrix / x->ne[2];
            for (int64_t row = begin; row < end; ++row) {
                const char* weights = row_of(w, row, i2 * w->ne[2] / x->ne[2], i3 * w->ne[3] / x->ne[3]);
                for (int64_t c = 0; c < x->ne[1]; ++c) add(weights, row, matrix * x->ne[1] + c, c, i2, i3);
            }
        }
        return true;
    }
};

}  // namespace

ggml_cpu::tensor_traits* dot_products(const ggml_tensor* op) {
    static DotProducts only;
    const ggml_tensor *w = op->src[0], *x = op->src[1];
    const bool hinted = op->op_params[1] != 0;  // about the kind of matrix, for which llama.cpp has a transform
    const bool experts = op->op == GGML_OP_MUL_MAT_ID;
    if ((op->op != GGML_OP_MUL_MAT || hinted) && !experts) return nullptr;
    if ((experts ? x->ne[2] : x->ne[1]) > dots_most_columns || !w->buffer) return nullptr;
    // Not the cache, nor what a device or llama.cpp's own repacking holds.
    if (ggml_backend_buffer_get_usage(w->buffer) != GGML_BACKEND_BUFFER_USAGE_WEIGHTS) return nullptr;
    if (!ggml_backend_buffer_is_host(w->buffer)) return nullptr;
    const ggml_type_traits_cpu* traits = cpu_backend()->type_traits(w->type);
    if (!traits->vec_dot || !cpu_backend()->type_traits(traits->vec_dot_type)->from_float) return nullptr;
    const bool taken = x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && w->nb[0] == ggml_type_size(w->type) &&
                       op->type == GGML_TYPE_F32 && op->nb[0] == sizeof(float);
    return taken ? &only : nullptr;
}

}  // namespace medusa::kernels
