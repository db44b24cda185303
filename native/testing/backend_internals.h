// What a ggml backend is made of, which its installed headers do not say: the tests' pretended device is one. Valid for
// the pinned llama-cpp-python only (kernels/ggml_internals.h).
#pragma once

#include "kernels/ggml_internals.h"

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
