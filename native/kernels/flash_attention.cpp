#include "kernels/operators.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/attention.h"
#include "kernels/format.h"
#include "kernels/ggml_internals.h"

namespace medusa::kernels {
namespace {

thread_local AttentionUse planned;

std::optional<CellType> cell_type(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16:
            return CellType::f16;
        case GGML_TYPE_Q8_0:
            return CellType::q8_0;
        case GGML_TYPE_Q4_0:
            return CellType::q4_0;
        default:
            return std::nullopt;
    }
}

}  // namespace

bool attention_takes(const Kernels& kernels, ggml_type key, ggml_type value, int64_t key_size, int64_t value_size) {
    const auto k = cell_type(key), v = cell_type(value);
    return kernels.attend && k && v && attention_fits(*k, key_size) && attention_fits(*v, value_size);
}

const AttentionUse& attention_use() {
    return planned;
}

AttentionUse take_attention_use() {
    return std::exchange(planned, {});
}

namespace {

float float_parameter(const ggml_tensor* op, int i) {
    float value;
    std::memcpy(&value, op->op_params + i, sizeof(value));
    return value;
}

// The operator's stream `stream`, which has its own cache.
Attention attention_of(const ggml_tensor* op, int64_t stream) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
    const auto data = [&](const ggml_tensor* tensor) {
        return static_cast<const char*>(tensor->data) + static_cast<size_t>(stream) * tensor->nb[3];
    };
    Attention a{};
    a.q = data(q), a.q_token = q->nb[1], a.q_head = q->nb[2];
    a.k = data(k), a.k_cell = k->nb[1], a.k_head = k->nb[2];
    a.v = data(v), a.v_cell = v->nb[1], a.v_head = v->nb[2];
    if (mask) a.mask = data(mask), a.mask_token = mask->nb[1];
    if (sinks) a.sinks = static_cast<const float*>(sinks->data);
    a.out = reinterpret_cast<float*>(static_cast<char*>(op->data) + static_cast<size_t>(stream) * op->nb[3]);
    a.scale = float_parameter(op, 0), a.cap = float_parameter(op, 2);
    a.key_type = *cell_type(k->type), a.value_type = *cell_type(v->type);
    a.key_size = k->ne[0], a.value_size = v->ne[0], a.cells = k->ne[1];
    a.tokens = q->ne[1], a.heads = q->ne[2], a.key_heads = k->ne[2];
    return a;
}

class FlashAttention final : public ggml_cpu::tensor_traits {
  public:
    explicit FlashAttention(const Kernels& kernels) : kernels_(kernels) {}

    bool work_size(int n_threads, const ggml_tensor* op, size_t& size) override {
        if (const char* reason = refusal(op)) {
            ++planned.left;
            planned.reason = reason;
            return false;
        }
        ++planned.served;
        const Attention a = attention_of(op, 0);
        const int64_t rows = attention_batch(a);
        size = std::max(attention_scratch(a, rows, n_threads),
                        attention_scratch(a, rows, 1) * static_cast<size_t>(n_threads)) +
               64;
        return true;
    }

    bool compute_forward(ggml_compute_params* params, ggml_tensor* op) override {
        if (refusal(op)) return false;
        const auto base = (reinterpret_cast<uintptr_t>(params->wdata) + 63) / 64 * 64;
        for (int64_t stream = 0; stream < op->src[0]->ne[3]; ++stream) {
            const Attention a = attention_of(op, stream);
            if (attention_shares_cells(a, params->nth)) {
                if (stream > 0) cpu_backend()->barrier(params->threadpool);
                share_cells(a, params, reinterpret_cast<void*>(base));
            } else {
                share_rows(a, params, base);
            }
        }
        return true;
    }

  private:
    void share_cells(const Attention& a, ggml_compute_params* params, void* scratch) const {
        const int64_t batch = attention_batch(a);
        for (int64_t begin = 0; begin < a.rows(); begin += batch) {
            const int64_t end = std::min(begin + batch, a.rows());
            const AttentionShare share{begin, end, params->ith, params->nth, scratch};
            for (int phase = 0; phase < attention_phases; ++phase) {
                if (phase > 0 || begin > 0) cpu_backend()->barrier(params->threadpool);
                kernels_.attend(a, share, phase);
            }
        }
    }

    void share_rows(const Attention& a, ggml_compute_params* params, uintptr_t base) const {
        const size_t each = attention_scratch(a, attention_batch(a), 1);
        void* scratch = reinterpret_cast<void*>(base + each * static_cast<size_t>(params->ith));
        const int64_t last = a.rows() * (params->ith + 1) / params->nth;
        for (int64_t begin = a.rows() * params->ith / params->nth; begin < last;) {
            const AttentionShare share{begin, std::min(attention_batch_end(a, begin), last), 0, 1, scratch};
            for (int phase = 0; phase < attention_phases; ++phase) kernels_.attend(a, share, phase);
            begin = share.end;
        }
    }

    // Why llama.cpp's own operator has to run; nullptr: ours runs.
    const char* refusal(const ggml_tensor* op) const {
        const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
        if (!kernels_.attend) return "these kernels have no attention";
        if (!cell_type(k->type) || !cell_type(v->type)) return "the cache is not F16, Q8_0 or Q4_0";
        if (!attention_takes(kernels_, k->type, v->type, k->ne[0], v->ne[0])) {
            return "a head size that the kernels do not support";
        }
        if (float_parameter(op, 1) != 0) return "scores with a position bias";
        const bool taken =
            k->ne[1] % attention_lanes == 0 && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) &&
            k->nb[0] == ggml_type_size(k->type) && v->nb[0] == ggml_type_size(v->type) && k->ne[3] == q->ne[3] &&
            v->ne[3] == q->ne[3] && k->ne[2] == v->ne[2] && q->ne[2] % k->ne[2] == 0 && ggml_is_contiguous(op) &&
            (!mask ||
             (mask->type == GGML_TYPE_F16 && mask->nb[0] == 2 && mask->ne[2] == 1 && mask->ne[3] == q->ne[3])) &&
            (!sinks || (sinks->type == GGML_TYPE_F32 && ggml_is_contiguous(sinks) && sinks->ne[0] == q->ne[2]));
        return taken ? nullptr : "a layout that the kernels do not support";
    }

    const Kernels& kernels_;
};

}  // namespace

ggml_cpu::tensor_traits* flash_attention(const Kernels& kernels) {
    static FlashAttention only(kernels);
    return &only;
}

}  // namespace medusa::kernels
