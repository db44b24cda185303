#include "kernels/operators.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/delta_net.h"
#include "kernels/format.h"
#include "kernels/ggml_internals.h"

namespace medusa::kernels {
namespace {

// Shorter rows stay with ggml: no state is that short.
constexpr int64_t long_row = 1024;

// Numbers in a state that is written past the caches: smaller states of all layers may stay there until the next step.
constexpr int64_t streamed_state = 1 << 16;

struct Range {
    int64_t begin, end;
};
Range share_of(int64_t count, const ggml_compute_params& params) {
    return {count * params.ith / params.nth, count * (params.ith + 1) / params.nth};
}

bool numbers_side_by_side(const ggml_tensor* tensor) {
    return tensor->type == GGML_TYPE_F32 && tensor->nb[0] == sizeof(float);
}

// Takes only one sequence, as in all of medusa's decoding.
bool takes_delta_net(const Kernels& kernels, const ggml_tensor* op) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *g = op->src[3], *beta = op->src[4];
    return kernels.delta_net && delta_net_fits(v->ne[0]) && q->ne[0] == v->ne[0] && k->ne[0] == v->ne[0] &&
           v->ne[3] == 1 && q->ne[3] == 1 && k->ne[3] == 1 && numbers_side_by_side(q) && numbers_side_by_side(k) &&
           numbers_side_by_side(v) && ggml_is_contiguous(g) && ggml_is_contiguous(beta) &&
           ggml_is_contiguous(op->src[5]);
}

// libllama reads the state of its one sequence as one long row, which ggml gives to a single thread.
bool takes_rows(const ggml_tensor* op) {
    const ggml_tensor *from = op->src[0], *rows = op->src[1];
    return numbers_side_by_side(from) && numbers_side_by_side(op) && rows->type == GGML_TYPE_I32 &&
           from->ne[0] >= long_row && from->ne[2] == 1 && from->ne[3] == 1 && rows->ne[1] == 1 && rows->ne[2] == 1;
}

// Snapshots of the state, also long rows that ggml gives to a single thread; or one state as a whole.
bool takes_copy(const ggml_tensor* op) {
    const ggml_tensor* from = op->src[0];
    if (!numbers_side_by_side(from) || !numbers_side_by_side(op)) return false;
    if (ggml_is_contiguous(from) && ggml_is_contiguous(op)) return ggml_nelements(op) >= long_row;
    return ggml_are_same_shape(from, op) && op->ne[0] >= long_row;
}

// The copy of a net's states into the cache follows the net in the graph: the net writes them there at once, and
// nothing is left to copy. Two things are kept with the net, after its own parameters, which are zero in a new graph:
// the copy, and whether the net has written there in this run. Thread 0 writes the latter, and the copy reads it after
// a barrier; the other threads of the net read only the former.
constexpr size_t copy_at = 32, done_at = copy_at + sizeof(const ggml_tensor*);
static_assert(done_at + sizeof(int32_t) <= GGML_MAX_OP_PARAMS);

template <typename T>
T parameter(const ggml_tensor* net, size_t at) {
    T out;
    std::memcpy(&out, reinterpret_cast<const char*>(net->op_params) + at, sizeof(out));
    return out;
}
template <typename T>
void set_parameter(ggml_tensor* net, size_t at, T value) {
    std::memcpy(reinterpret_cast<char*>(net->op_params) + at, &value, sizeof(value));
}

const ggml_tensor* copy_of(const ggml_tensor* net) {
    return parameter<const ggml_tensor*>(net, copy_at);
}

// Whether a copy takes all states of a net of ours out of the net's own memory.
bool copies_states(const Kernels& kernels, const ggml_tensor* copy) {
    const ggml_tensor *from = copy->src[0], *net = from->view_src;
    if (!net || net->op != GGML_OP_GATED_DELTA_NET || !takes_delta_net(kernels, net)) return false;
    const int64_t size = net->src[2]->ne[0], heads = net->src[2]->ne[1], tokens = net->src[2]->ne[2];
    const int64_t state = size * size * heads, slots = std::min<int64_t>(net->op_params[0], tokens);
    const bool whole = ggml_is_contiguous(copy) && slots == 1;
    const bool row_by_row = copy->ne[0] == state && copy->ne[1] == 1 && copy->ne[2] == slots && copy->ne[3] == 1;
    return from->view_offs == static_cast<size_t>(size * heads * tokens) * sizeof(float) && ggml_is_contiguous(from) &&
           ggml_nelements(from) == state * slots && (whole || row_by_row) && copy->nb[2] % sizeof(float) == 0;
}

// Otherwise, memory to be overwritten would first be read into the caches.
bool at_lines(const DeltaNet& net) {
    constexpr uintptr_t line = 64;
    return reinterpret_cast<uintptr_t>(net.after) % line == 0 && net.after_slot * sizeof(float) % line == 0 &&
           net.rows() * net.size >= streamed_state;
}

DeltaNet net_of(const ggml_tensor* op) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *g = op->src[3];
    DeltaNet net{};
    net.q = static_cast<const char*>(q->data), net.q_head = q->nb[1], net.q_token = q->nb[2];
    net.k = static_cast<const char*>(k->data), net.k_head = k->nb[1], net.k_token = k->nb[2];
    net.v = static_cast<const char*>(v->data), net.v_head = v->nb[1], net.v_token = v->nb[2];
    net.decay = static_cast<const float*>(g->data), net.decay_by_key = g->ne[0] > 1;
    net.beta = static_cast<const float*>(op->src[4]->data);
    net.before = static_cast<const float*>(op->src[5]->data);
    net.size = v->ne[0], net.heads = v->ne[1], net.tokens = v->ne[2];
    net.query_heads = q->ne[1], net.key_heads = k->ne[1], net.slots = op->op_params[0];
    net.out = static_cast<float*>(op->data), net.after = net.out + net.size * net.heads * net.tokens;
    net.after_slot = net.size * net.size * net.heads;
    if (const ggml_tensor* copy = copy_of(op)) {
        net.after = static_cast<float*>(copy->data);
        if (std::min(net.slots, net.tokens) > 1) net.after_slot = static_cast<int64_t>(copy->nb[2] / sizeof(float));
        net.past_caches = at_lines(net);
    }
    return net;
}

class DeltaNetOperator final : public ggml_cpu::tensor_traits {
  public:
    explicit DeltaNetOperator(const Kernels& kernels) : kernels_(kernels) {}

    bool work_size(int, const ggml_tensor*, size_t& size) override {
        size = 0;
        return true;
    }
    bool compute_forward(ggml_compute_params* params, ggml_tensor* op) override {
        const DeltaNet net = net_of(op);
        if (params->ith == 0) set_parameter<int32_t>(op, done_at, copy_of(op) != nullptr);
        const Range share = share_of(net.rows() / delta_net_rows, *params);
        kernels_.delta_net(net, share.begin * delta_net_rows, share.end * delta_net_rows);
        return true;
    }

  private:
    const Kernels& kernels_;
};

class LongRows final : public ggml_cpu::tensor_traits {
  public:
    bool work_size(int, const ggml_tensor*, size_t& size) override {
        size = 0;
        return true;
    }
    bool compute_forward(ggml_compute_params* params, ggml_tensor* op) override {
        const ggml_tensor *from = op->src[0], *rows = op->src[1];
        const Range share = share_of(from->ne[0], *params);
        for (int64_t i = 0; i < rows->ne[0]; ++i) {
            int32_t row;
            std::memcpy(&row, static_cast<const char*>(rows->data) + static_cast<size_t>(i) * rows->nb[0], sizeof(row));
            GGML_ASSERT(row >= 0 && row < from->ne[1]);
            const auto begin = static_cast<size_t>(share.begin) * sizeof(float);
            std::memcpy(static_cast<char*>(op->data) + static_cast<size_t>(i) * op->nb[1] + begin,
                        static_cast<const char*>(from->data) + static_cast<size_t>(row) * from->nb[1] + begin,
                        static_cast<size_t>(share.end - share.begin) * sizeof(float));
        }
        return true;
    }
};

class LongCopy final : public ggml_cpu::tensor_traits {
  public:
    explicit LongCopy(const Kernels& kernels) : kernels_(kernels) {}

    // A net is planned before its copy.
    bool work_size(int, const ggml_tensor* op, size_t& size) override {
        if (copies_states(kernels_, op)) {
            set_parameter(op->src[0]->view_src, copy_at, op);
            set_parameter<int32_t>(op->src[0]->view_src, done_at, 0);
        }
        size = 0;
        return true;
    }
    bool compute_forward(ggml_compute_params* params, ggml_tensor* op) override {
        const ggml_tensor* from = op->src[0];
        if (copies_states(kernels_, op) && parameter<int32_t>(from->view_src, done_at)) return true;
        if (ggml_is_contiguous(from) && ggml_is_contiguous(op)) {
            const Range share = share_of(ggml_nelements(op), *params);
            const auto* at = static_cast<const float*>(from->data);
            std::copy(at + share.begin, at + share.end, static_cast<float*>(op->data) + share.begin);
            return true;
        }
        const Range share = share_of(op->ne[0], *params);
        const auto row = [](const ggml_tensor* tensor, int64_t i1, int64_t i2, int64_t i3) {
            return reinterpret_cast<float*>(static_cast<char*>(tensor->data) + static_cast<size_t>(i1) * tensor->nb[1] +
                                            static_cast<size_t>(i2) * tensor->nb[2] +
                                            static_cast<size_t>(i3) * tensor->nb[3]);
        };
        for (int64_t i3 = 0; i3 < op->ne[3]; ++i3) {
            for (int64_t i2 = 0; i2 < op->ne[2]; ++i2) {
                for (int64_t i1 = 0; i1 < op->ne[1]; ++i1) {
                    const float* at = row(from, i1, i2, i3);
                    std::copy(at + share.begin, at + share.end, row(op, i1, i2, i3) + share.begin);
                }
            }
        }
        return true;
    }

  private:
    const Kernels& kernels_;
};

}  // namespace

ggml_cpu::tensor_traits* recurrent_operator(const Kernels& kernels, const ggml_tensor* op) {
    static DeltaNetOperator delta_net(kernels);
    static LongRows long_rows;
    static LongCopy long_copy(kernels);
    if (op->op == GGML_OP_GATED_DELTA_NET && takes_delta_net(kernels, op)) return &delta_net;
    if (op->op == GGML_OP_GET_ROWS && takes_rows(op)) return &long_rows;
    if (op->op == GGML_OP_CPY && takes_copy(op)) return &long_copy;
    return nullptr;
}

}  // namespace medusa::kernels
