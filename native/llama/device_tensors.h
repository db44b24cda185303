// Tensors with memory of their own on a device.
#pragma once

#include <string>

#include "base/common.h"
#include "ggml-cpp.h"

namespace medusa {

class DeviceTensors {
  public:
    // Up to `most` tensors, made in context().
    explicit DeviceTensors(size_t most)
        : context_(ggml_init({most * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true})) {}

    ggml_context* context() const { return context_.get(); }
    // Memory for the tensors made so far, if any. what: what they are, for the message. Throws OutOfMemory.
    void allocate(ggml_backend_buffer_type_t type, const std::string& what, const char* remedy = "") {
        if (!ggml_get_first_tensor(context())) return;
        buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context(), type));
        if (!buffer_) throw OutOfMemory("no memory for " + what, remedy);
    }
    void allocate(ggml_backend_dev_t device, const std::string& what, const char* remedy = "") {
        allocate(ggml_backend_dev_buffer_type(device), what, remedy);
    }
    void clear() { ggml_backend_buffer_clear(buffer_.get(), 0); }
    size_t size_bytes() const { return buffer_ ? ggml_backend_buffer_get_size(buffer_.get()) : 0; }

  private:
    ggml_context_ptr context_;
    ggml_backend_buffer_ptr buffer_;
};

}  // namespace medusa
