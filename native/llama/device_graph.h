// Small graphs of our own, beside libllama's: computed on the device that holds their weights.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ggml-cpp.h"
#include "llama/backend.h"

namespace medusa {

// On the CPU it computes in llama.cpp's own threads. Throws Error.
ggml_backend_ptr start_backend(ggml_backend_dev_t device);

// One ggml graph with its memory: created, filled through context(), closed with finish(), then computed any number of
// times.
class DeviceGraph {
  public:
    DeviceGraph(ggml_backend_t backend, size_t most_tensors);

    ggml_context* context() const { return context_.get(); }
    ggml_tensor* new_input(int64_t columns, int64_t rows, ggml_type type = GGML_TYPE_F32);
    // Throws Error when the backend lacks an operation or memory.
    void finish(ggml_tensor* output);
    // The output's numbers; valid until the next call.
    std::span<const float> compute();
    static void set(ggml_tensor* input, std::span<const float> values);

  private:
    ggml_backend_t backend_;
    ggml_context_ptr context_;
    ggml_gallocr_ptr allocator_;
    ggml_cgraph* graph_ = nullptr;
    ggml_tensor* output_ = nullptr;
    std::vector<float> copy_;  // for an output that the processor cannot read in place
};

}  // namespace medusa
