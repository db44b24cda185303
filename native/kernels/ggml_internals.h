// Everything we use of libllama and ggml that is not in their installed headers. Valid for llama-cpp-python 0.3.36
// only: the pin is checked when the module is built and when it is loaded (medusa_cli/native.py).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "llama.h"

// Of a context that predicts further tokens by layers of its own (MTP): which of them. Any other context only compares
// the number: a graph that was made under another one is not used again.
LLAMA_API void llama_set_nextn_layer_offset(llama_context* context, int32_t offset);

#if defined(__linux__) || defined(__APPLE__)
#define MEDUSA_HAS_TENSOR_MAP 1
// Name and tensor of every loaded weight. Exported as a C++ symbol on Linux and macOS only.
LLAMA_API const std::vector<std::pair<std::string, ggml_tensor*>>& llama_internal_get_tensor_map(
    const llama_model* model);
#else
#define MEDUSA_HAS_TENSOR_MAP 0
#endif

// The CPU backend's hook for kernels of one's own. Its C++ symbols are exported on Linux and macOS only.
#if defined(__linux__) || defined(__APPLE__)
#define MEDUSA_HAS_EXTRA_BUFFER_TYPES 1

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

namespace ggml::cpu {
class tensor_traits {
  public:
    virtual ~tensor_traits();
    virtual bool work_size(int n_threads, const ggml_tensor* op, size_t& size) = 0;
    virtual bool compute_forward(ggml_compute_params* params, ggml_tensor* op) = 0;
};

class extra_buffer_type {
  public:
    virtual ~extra_buffer_type();
    virtual bool supports_op(ggml_backend_dev_t device, const ggml_tensor* op) = 0;
    virtual tensor_traits* get_tensor_traits(const ggml_tensor* op) = 0;
};
}  // namespace ggml::cpu

// Buffer types with kernels of their own (repacked weights), asked in order when weights are placed. The list is read
// once, at the first model load of the process.
std::vector<ggml_backend_buffer_type_t>& ggml_backend_cpu_get_extra_buffer_types() __attribute__((weak));
extern "C" void ggml_barrier(ggml_threadpool* threadpool);
#else
#define MEDUSA_HAS_EXTRA_BUFFER_TYPES 0
#endif

// What a backend is made of: only the device that tests pretend to have (native/testing) is one of ours.
struct ggml_backend {
    ggml_guid_t guid;
    struct {
        const char* (*get_name)(ggml_backend_t);
        void (*free)(ggml_backend_t);
        void (*set_tensor_async)(ggml_backend_t, ggml_tensor*, const void* data, size_t offset, size_t size);
        void (*get_tensor_async)(ggml_backend_t, const ggml_tensor*, void* data, size_t offset, size_t size);
        void (*set_tensor_2d_async)();
        void (*get_tensor_2d_async)();
        bool (*cpy_tensor_async)(ggml_backend_t, ggml_backend_t, const ggml_tensor* source, ggml_tensor* target);
        void (*synchronize)(ggml_backend_t);
        void (*graph_plan_create)();
        void (*graph_plan_free)();
        void (*graph_plan_update)();
        void (*graph_plan_compute)();
        ggml_status (*graph_compute)(ggml_backend_t, ggml_cgraph*);
        void (*event_record)();
        void (*event_wait)();
        void (*graph_optimize)();
    } iface;
    ggml_backend_dev_t device;
    void* context;
};

struct ggml_backend_device {
    struct {
        const char* (*get_name)(ggml_backend_dev_t);
        const char* (*get_description)(ggml_backend_dev_t);
        void (*get_memory)(ggml_backend_dev_t, size_t* free, size_t* total);
        enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t);
        void (*get_props)(ggml_backend_dev_t, ggml_backend_dev_props*);
        ggml_backend_t (*init_backend)(ggml_backend_dev_t, const char* params);
        ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t);
        ggml_backend_buffer_type_t (*get_host_buffer_type)(ggml_backend_dev_t);
        ggml_backend_buffer_t (*buffer_from_host_ptr)(ggml_backend_dev_t, void*, size_t size, size_t max_tensor_size);
        bool (*supports_op)(ggml_backend_dev_t, const ggml_tensor* op);
        bool (*supports_buft)(ggml_backend_dev_t, ggml_backend_buffer_type_t);
        bool (*offload_op)(ggml_backend_dev_t, const ggml_tensor* op);
        void (*event_new)();
        void (*event_free)();
        void (*event_synchronize)();
    } iface;
    ggml_backend_reg_t reg;
    void* context;
};

struct ggml_backend_reg {
    int api_version;
    struct {
        const char* (*get_name)(ggml_backend_reg_t);
        size_t (*get_device_count)(ggml_backend_reg_t);
        ggml_backend_dev_t (*get_device)(ggml_backend_reg_t, size_t index);
        void* (*get_proc_address)(ggml_backend_reg_t, const char* name);
    } iface;
    void* context;
};
inline constexpr int ggml_backend_api_version = 2;

static_assert(sizeof(void*) != 8 ||
                  (sizeof(ggml_backend) == 152 && sizeof(ggml_backend_device) == 136 && sizeof(ggml_backend_reg) == 48),
              "laid out as in the pinned llama-cpp-python");

// Takes the calls of a buffer by value, in the layout above.
extern "C" ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t,
                                                          decltype(ggml_backend_buffer::iface), void* context,
                                                          size_t size);
