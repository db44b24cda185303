#include "kernels/buffer_type.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/platform.h"
#include "kernels/format.h"
#include "kernels/ggml_internals.h"
#include "kernels/operators.h"
#include "kernels/product.h"

namespace medusa::kernels {
namespace {

const Kernels* kernels = nullptr;
std::atomic<bool> used = true;

std::string requested() {
    const char* isa = std::getenv("MEDUSA_ISA");
    return isa ? isa : "";
}

// A stack of experts' matrices is packed as one matrix of all their rows.
const Format* packed_format(const ggml_tensor* tensor) {
    const Format* format = format_of(tensor->type);
    const int dimensions = ggml_n_dims(tensor);
    if (!format || dimensions > 3 || !fits(*format, tensor->ne[0])) return nullptr;
    if (dimensions == 3 && tensor->ne[1] % group_rows != 0) return nullptr;
    return format;
}

class MulMat final : public ggml_cpu::tensor_traits {
  public:
    bool work_size(int, const ggml_tensor* op, size_t& size) override {
        if (op->op != GGML_OP_MUL_MAT) return false;
        const ggml_tensor* x = op->src[1];
        size = column_bytes(*format_of(op->src[0]->type), x->ne[0]) * static_cast<size_t>(ggml_nrows(x));
        return true;
    }

    bool compute_forward(ggml_compute_params* params, ggml_tensor* op) override {
        if (op->op != GGML_OP_MUL_MAT) return false;
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        const Format& format = *format_of(w->type);
        const int64_t columns = w->ne[0], groups = groups_of(w->ne[1]), n = ggml_nrows(x);
        const size_t stride = column_bytes(format, columns);
        char* activations = static_cast<char*>(params->wdata);
        for (int64_t c = params->ith; c < n; c += params->nth) {
            prepare(*kernels, format, row_of(x, c), columns, activations + static_cast<size_t>(c) * stride);
        }
        cpu_backend()->barrier(params->threadpool);
        const int64_t begin = groups * params->ith / params->nth, end = groups * (params->ith + 1) / params->nth;
        multiply(*kernels, format, w->data, columns, w->ne[1], begin, end, activations, stride, static_cast<int>(n),
                 static_cast<float*>(op->data), op->nb[1] / sizeof(float));
        return true;
    }

  private:
    static const float* row_of(const ggml_tensor* x, int64_t row) {
        const int64_t i1 = row % x->ne[1], i2 = row / x->ne[1] % x->ne[2], i3 = row / (x->ne[1] * x->ne[2]);
        return reinterpret_cast<const float*>(static_cast<const char*>(x->data) + i1 * x->nb[1] + i2 * x->nb[2] +
                                              i3 * x->nb[3]);
    }
};

MulMat mul_mat;

// Products with the experts that each token is sent to: all tokens of one expert share its matrix.
class MulMatId final : public ggml_cpu::tensor_traits {
  public:
    bool work_size(int n_threads, const ggml_tensor* op, size_t& size) override {
        if (op->op != GGML_OP_MUL_MAT_ID) return false;
        const Work work(op);
        size = work.result_bytes + work.activation_bytes + work.order_bytes * static_cast<size_t>(n_threads) + 64;
        return true;
    }

    bool compute_forward(ggml_compute_params* params, ggml_tensor* op) override {
        if (op->op != GGML_OP_MUL_MAT_ID) return false;
        const ggml_tensor *w = op->src[0], *x = op->src[1], *ids = op->src[2];
        const Format& format = *format_of(w->type);
        const Work work(op);
        char* activations = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(params->wdata) + 63) / 64 * 64);
        auto* results = reinterpret_cast<float*>(activations + work.activation_bytes);
        auto* first = reinterpret_cast<int32_t*>(activations + work.activation_bytes + work.result_bytes +
                                                 work.order_bytes * static_cast<size_t>(params->ith));
        int32_t* order = first + w->ne[2] + 1;
        sort(ids, w->ne[2], first, order);
        for (int64_t i = params->ith; i < work.rows; i += params->nth) {
            const int64_t slot = order[i] % ids->ne[0], token = order[i] / ids->ne[0];
            const char* row = static_cast<const char*>(x->data) + slot % x->ne[1] * x->nb[1] + token * x->nb[2];
            prepare(*kernels, format, reinterpret_cast<const float*>(row), w->ne[0],
                    activations + static_cast<size_t>(i) * work.stride);
        }
        cpu_backend()->barrier(params->threadpool);
        const int64_t groups = w->ne[1] / group_rows;
        const int64_t begin = groups * params->ith / params->nth, end = groups * (params->ith + 1) / params->nth;
        const size_t expert_bytes = packed_bytes(format, w->ne[0], w->ne[1]);
        for (int64_t expert = 0; expert < w->ne[2]; ++expert) {
            const int32_t from = first[expert], to = first[expert + 1];
            if (from == to) continue;
            multiply(*kernels, format, static_cast<const char*>(w->data) + static_cast<size_t>(expert) * expert_bytes,
                     w->ne[0], w->ne[1], begin, end, activations + static_cast<size_t>(from) * work.stride, work.stride,
                     to - from, results + from * w->ne[1], static_cast<size_t>(w->ne[1]));
            for (int32_t i = from; i < to; ++i) {
                const int64_t slot = order[i] % ids->ne[0], token = order[i] / ids->ne[0], row = begin * group_rows;
                char* target = static_cast<char*>(op->data) + slot * op->nb[1] + token * op->nb[2];
                std::memcpy(reinterpret_cast<float*>(target) + row, results + i * w->ne[1] + row,
                            static_cast<size_t>((end - begin) * group_rows) * sizeof(float));
            }
        }
        return true;
    }

  private:
    struct Work {
        int64_t rows;  // pairs of a token and one of its experts
        size_t stride, activation_bytes, result_bytes;
        size_t order_bytes;  // per thread, since each sorts for itself

        explicit Work(const ggml_tensor* op)
            : rows(ggml_nelements(op->src[2])),
              stride((column_bytes(*format_of(op->src[0]->type), op->src[0]->ne[0]) + 63) / 64 * 64),
              activation_bytes(static_cast<size_t>(rows) * stride),
              result_bytes(static_cast<size_t>(rows * op->src[0]->ne[1]) * sizeof(float)),
              order_bytes(static_cast<size_t>(rows + op->src[0]->ne[2] + 1) * sizeof(int32_t)) {}
    };

    // order: numbers of the pairs, expert by expert; expert e has order[first[e]..first[e + 1] - 1].
    static void sort(const ggml_tensor* ids, int64_t experts, int32_t* first, int32_t* order) {
        const auto expert_of = [&](int64_t slot, int64_t token) {
            int32_t id;
            std::memcpy(&id, static_cast<const char*>(ids->data) + slot * ids->nb[0] + token * ids->nb[1], sizeof(id));
            return id;
        };
        std::fill(first, first + experts + 1, 0);
        for (int64_t token = 0; token < ids->ne[1]; ++token) {
            for (int64_t slot = 0; slot < ids->ne[0]; ++slot) ++first[expert_of(slot, token) + 1];
        }
        for (int64_t e = 0; e < experts; ++e) first[e + 1] += first[e];
        for (int64_t token = ids->ne[1] - 1; token >= 0; --token) {
            for (int64_t slot = ids->ne[0] - 1; slot >= 0; --slot) {
                // Counted down from the end of each expert's range; first[e + 1] ends up as its beginning.
                order[--first[expert_of(slot, token) + 1]] = static_cast<int32_t>(token * ids->ne[0] + slot);
            }
        }
        std::move(first + 1, first + experts + 1, first);
        first[experts] = static_cast<int32_t>(ggml_nelements(ids));
    }
};

MulMatId mul_mat_id;

class ExtraBufferType final : public ggml_cpu::extra_buffer_type {
  public:
    bool supports_op(ggml_backend_dev_t, const ggml_tensor* op) override {
        // A weight without memory means that a loader asks where to put it; weights already with us stay.
        if (!used && op->src[0]->buffer && ggml_backend_buffer_get_size(op->src[0]->buffer) == 0) return false;
        const bool experts = op->op == GGML_OP_MUL_MAT_ID;
        if ((op->op != GGML_OP_MUL_MAT && !experts) || !ours(op->src[0]) || !packed_format(op->src[0])) return false;
        if (op->src[0]->ne[2] != 1 && !experts) return false;
        const ggml_tensor* x = op->src[1];
        if (x->buffer && !ggml_backend_buft_is_host(ggml_backend_buffer_get_type(x->buffer))) return false;
        return x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && ggml_is_contiguous(op);
    }

    ggml_cpu::tensor_traits* get_tensor_traits(const ggml_tensor* op) override {
        if (op->op == GGML_OP_FLASH_ATTN_EXT) return used ? flash_attention(*kernels) : nullptr;
        const bool experts = op->op == GGML_OP_MUL_MAT_ID;
        if (op->op != GGML_OP_MUL_MAT && !experts) return used ? recurrent_operator(*kernels, op) : nullptr;
        if (ours(op->src[0])) return experts ? static_cast<ggml_cpu::tensor_traits*>(&mul_mat_id) : &mul_mat;
        const bool packed = (op->src[0]->ne[2] == 1 || experts) && packed_format(op->src[0]);
        return used && !packed ? dot_products(op) : nullptr;
    }

  private:
    static bool ours(const ggml_tensor* w) {
        return w->buffer && ggml_backend_buffer_get_type(w->buffer) == buffer_type();
    }
};

void set_tensor(ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor));
    const Format& format = *packed_format(tensor);
    const int64_t rows = ggml_nrows(tensor), groups = groups_of(rows);
    const auto most = static_cast<int64_t>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
    const int64_t threads = std::min(most, groups);
    const auto pack_part = [&](int64_t i) {
        pack(format, data, tensor->data, tensor->ne[0], rows, groups * i / threads, groups * (i + 1) / threads);
    };
    std::vector<std::thread> workers;
    workers.reserve(static_cast<size_t>(threads));
    int64_t begun = 0;
    try {
        for (; begun + 1 < threads; ++begun) workers.emplace_back(pack_part, begun);
    } catch (const std::system_error&) {
        // The system has no more threads, or no memory for one: this thread does what is left.
    }
    for (; begun < threads; ++begun) pack_part(begun);
    for (std::thread& worker : workers) worker.join();
    release_file_pages(data, size);
}

const char* name(ggml_backend_buffer_type_t) {
    return buffer_name;
}

size_t alignment(ggml_backend_buffer_type_t) {
    return 64;
}

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor* tensor) {
    const Format* format = packed_format(tensor);
    return format ? packed_bytes(*format, tensor->ne[0], ggml_nrows(tensor)) : ggml_nbytes(tensor);
}

// All weights are read once per step: fewer, larger pages save address translations. Only a hint.
void ask_for_huge_pages(void* base, size_t size) {
#if defined(__linux__)
    const uintptr_t page = 4096, begin = (reinterpret_cast<uintptr_t>(base) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(base) + size) / page * page;
    if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)base, (void)size;
#endif
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (!buffer) return nullptr;
    ask_for_huge_pages(ggml_backend_buffer_get_base(buffer), size);
    buffer->buft = type;
    buffer->iface.set_tensor = set_tensor;
    buffer->iface.get_tensor = nullptr;
    buffer->iface.cpy_tensor = nullptr;
    return buffer;
}

std::string why_none_is_selected(const std::string& isa) {
    if (isa == "off") return "MEDUSA_ISA=off";
    if (isa.empty()) return "none for this processor is faster than llama.cpp's own";
    std::string names;
    for (const Kernels* one : supported_kernels()) names += (names.empty() ? "" : ", ") + std::string(one->name);
    return "MEDUSA_ISA=" + isa + " is not supported by this processor (" + names + ", or off)";
}

// Puts the type first. false: too late for models, whose loader copied the list when it loaded the first one.
bool put_first(ggml_backend_buffer_type_t type) {
    auto& types = cpu_backend()->extra_buffer_types();
    // Done by the engine's module, if this is the tests' module, whose contexts are to be like the engine's.
    if (!types.empty() && ggml_backend_buft_name(types.front()) == std::string(buffer_name)) return true;
    types.insert(types.begin(), type);
    const auto loaders_list = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(type->device), "ggml_backend_dev_get_extra_bufts"));
    if (!loaders_list || *loaders_list(type->device) == type) return true;
    types.erase(types.begin());
    return false;
}

Status choose_and_register() {
    Status out{nullptr, requested(), ""};
    if (!cpu_backend()) {
        out.reason = "this build of llama.cpp does not export what our kernels need";
    } else if (!layout_is_known()) {
        out.reason = "the loaded ggml does not match the pinned version";
    } else if (kernels = select_kernels(); !kernels) {
        out.reason = why_none_is_selected(out.requested);
    } else {
        out.late = !put_first(buffer_type());
        if (out.late) {
            kernels = nullptr;
            out.reason = "a model was loaded before them in this process";
        }
        out.selected = kernels;
    }
    return out;
}

}  // namespace

bool layout_is_known() {
    if (std::string(ggml_version()) != ggml_release) return false;
    ggml_backend_buffer_t probe = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 64);
    if (!probe) return false;
    ggml_backend_buffer_set_usage(probe, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    const bool known = probe->buft == ggml_backend_cpu_buffer_type() &&
                       probe->size == ggml_backend_buffer_get_size(probe) &&
                       probe->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
                       probe->iface.get_base(probe) == ggml_backend_buffer_get_base(probe);
    ggml_backend_buffer_free(probe);
    return known;
}

ggml_backend_buffer_type_t buffer_type() {
    if (!kernels) return nullptr;
    static ExtraBufferType extra;
    static ggml_backend_buffer_type type{{name, alloc_buffer, alignment, nullptr, alloc_size, nullptr},
                                         ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU),
                                         &extra};
    return &type;
}

bool serves(ggml_type type, int64_t columns) {
    const Format* format = format_of(type);
    return kernels && format && fits(*format, columns);
}

bool serves_attention(ggml_type key, ggml_type value, int64_t key_size, int64_t value_size) {
    return kernels && attention_takes(*kernels, key, value, key_size, value_size);
}

void use_kernels(bool wanted) {
    used = wanted;
}

bool kernels_used() {
    return kernels && used;
}

const Status& status() {
    static const Status done = choose_and_register();
    return done;
}

}  // namespace medusa::kernels
