// Draft heads' computations on the device that holds their weights.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "heads/weights.h"

namespace medusa {

// A backend of the heads' device; on the CPU it computes in llama.cpp's own threads. Throws Error.
ggml_backend_ptr start_backend(const Heads& heads);
// Of its computations from here on; nothing to a device.
void set_threads(ggml_backend_t backend, int threads);

// One ggml graph with its memory: made, filled through context(), closed with finish(), then computed any number of
// times.
class HeadsGraph {
  public:
    HeadsGraph(ggml_backend_t backend, size_t most_tensors);

    ggml_context* context() const { return context_.get(); }
    ggml_tensor* new_input(int64_t columns, int64_t rows);
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
    std::vector<float> copy_;  // of an output that the processor cannot read where it lies
};

// weight * x + bias
ggml_tensor* linear(ggml_context* c, const Linear& layer, ggml_tensor* x);
// x + SiLU(Wx + b) (Medusa 2.1)
ggml_tensor* residual_block(ggml_context* c, const Linear& layer, ggml_tensor* x);

}  // namespace medusa
