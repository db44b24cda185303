// Everything we use from libllama and ggml that is not in their installed headers. Valid for llama-cpp-python 0.3.36
// only: the pin is checked when the module is built and when it is loaded (medusa_cli/native.py).
#pragma once

#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "llama.h"

namespace medusa {
// The ggml of that release, as ggml_version() names it.
inline constexpr const char* ggml_release = "0.25.3";
}  // namespace medusa

// For a context that predicts further tokens with layers of its own (MTP): which of them. Any other context only
// compares the number: a graph made under another number is not reused.
LLAMA_API void llama_set_nextn_layer_offset(llama_context* context, int32_t offset);
// Decodes leave the states that such layers read: of their outputs (masked), or of all their rows.
LLAMA_API void llama_set_embeddings_nextn(llama_context* context, bool value, bool masked);
// Such a state by its row in the newest batch; nullptr: there is none.
LLAMA_API float* llama_get_embeddings_nextn_ith(llama_context* context, int32_t row);

struct ggml_backend_buffer_type {
    struct {
        const char* (*get_name)(ggml_backend_buffer_type_t);
        ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t size);
        size_t (*get_alignment)(ggml_backend_buffer_type_t);
        size_t (*get_max_size)(ggml_backend_buffer_type_t);
        size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor*);
        bool (*is_host)(ggml_backend_buffer_type_t);
    } iface;
    ggml_backend_dev_t device;
    void* context;  // an extra_buffer_type
};

struct ggml_backend_buffer {
    struct {
        void (*free_buffer)(ggml_backend_buffer_t);
        void* (*get_base)(ggml_backend_buffer_t);
        ggml_status (*init_tensor)(ggml_backend_buffer_t, ggml_tensor*);
        void (*memset_tensor)(ggml_backend_buffer_t, ggml_tensor*, uint8_t value, size_t offset, size_t size);
        void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor*, const void* data, size_t offset, size_t size);
        void (*get_tensor)(ggml_backend_buffer_t, const ggml_tensor*, void* data, size_t offset, size_t size);
        void (*set_tensor_2d)();
        void (*get_tensor_2d)();
        bool (*cpy_tensor)(ggml_backend_buffer_t, const ggml_tensor* source, ggml_tensor* target);
        void (*clear)(ggml_backend_buffer_t, uint8_t value);
        void (*reset)(ggml_backend_buffer_t);
    } iface;
    ggml_backend_buffer_type_t buft;
    void* context;
    size_t size;
    ggml_backend_buffer_usage usage;
};

struct ggml_threadpool;
struct ggml_compute_params {
    int ith, nth;  // this thread, threads
    size_t wsize;
    void* wdata;  // shared by the threads of one operation
    ggml_threadpool* threadpool;
    bool use_ref;
};

static_assert(sizeof(void*) != 8 || (sizeof(ggml_backend_buffer_type) == 64 && sizeof(ggml_backend_buffer) == 120 &&
                                     sizeof(ggml_compute_params) == 40),
              "laid out as in the pinned llama-cpp-python");

namespace medusa {

// What the CPU backend calls custom kernels through: ggml::cpu::tensor_traits and ggml::cpu::extra_buffer_type, known
// by the order of their virtual functions. These are classes of our own, so nothing of the backend's is imported.
namespace ggml_cpu {
class tensor_traits {
  public:
    virtual ~tensor_traits() = default;
    virtual bool work_size(int n_threads, const ggml_tensor* op, size_t& size) = 0;
    virtual bool compute_forward(ggml_compute_params* params, ggml_tensor* op) = 0;
};

class extra_buffer_type {
  public:
    virtual ~extra_buffer_type() = default;
    virtual bool supports_op(ggml_backend_dev_t device, const ggml_tensor* op) = 0;
    virtual tensor_traits* get_tensor_traits(const ggml_tensor* op) = 0;
};
}  // namespace ggml_cpu

// Functions of the CPU backend, which may be a library that the process has linked or a module that ggml has loaded.
struct CpuBackend {
    // Buffer types with their own kernels (repacked weights), asked in order when weights are placed. The list is read
    // once, at the first model load of the process.
    std::vector<ggml_backend_buffer_type_t>& (*extra_buffer_types)();
    void (*barrier)(ggml_threadpool*);
    const ggml_type_traits_cpu* (*type_traits)(ggml_type);
};
// nullptr where one of them is not exported (Windows), or no CPU backend is loaded.
const CpuBackend* cpu_backend();

// Every loaded weight; one that lies in two buffers twice, under the same name. Empty where libllama does not export
// the list (Windows).
std::vector<ggml_tensor*> loaded_tensors(const llama_model* model);

// The file of the library that holds a function; "" where the platform does not tell.
std::string library_of(const void* function);

}  // namespace medusa
