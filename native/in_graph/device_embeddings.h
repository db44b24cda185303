// The base's token embedding matrix where heads run: the loaded one where it lies there, else a copy.
#pragma once

#include "ggml-cpp.h"
#include "heads/weights.h"

namespace medusa::in_graph {

class DeviceEmbeddings {
  public:
    // Throws Error where the base has no usual embedding matrix, OutOfMemory where the device has no room for it.
    explicit DeviceEmbeddings(const Heads& heads);

    // Rows of tokens [n] (I32), times the heads' scale: [h, n].
    ggml_tensor* rows(ggml_context* c, ggml_tensor* tokens) const;

  private:
    void copy(const Heads& heads, const TensorInfo& info);

    ggml_context_ptr context_;
    ggml_backend_buffer_ptr buffer_;
    ggml_tensor* matrix_ = nullptr;  // [h, vocabulary]
    float scale_;
};

}  // namespace medusa::in_graph
