// What streams compute with: the base's own top layers, as libllama holds them, and the adapters of a file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "heads/metadata.h"
#include "llama/device_tensors.h"
#include "llama/model.h"

namespace medusa {

// weight [columns, rows] in ggml's order; bias [rows] or nullptr.
struct Linear {
    ggml_tensor* weight = nullptr;
    ggml_tensor* bias = nullptr;
};

// What is added to the products of matrices with one input, b * (a * x): rows one below the other. Null: nothing.
struct Adapter {
    ggml_tensor *a = nullptr, *b = nullptr;
};

// One layer of the base and its adapters.
struct StreamLayer {
    ggml_tensor *attention_norm = nullptr, *feed_forward_norm = nullptr;
    ggml_tensor *query_norm = nullptr, *key_norm = nullptr;  // per head, if there are any
    Linear query, key, value, output, gate, up, down;
    Adapter query_key_value, to_output, gate_up, to_down;
};

class StreamWeights {
  public:
    // Adapters go to `device`. Throws Error for layers that are not built here and for anything in the file that does
    // not fit them.
    StreamWeights(const LlamaModel& model, const GgufFile& file, const HeadsMetadata& metadata,
                  ggml_backend_dev_t device);

    const std::vector<StreamLayer>& layers() const { return layers_; }
    ggml_tensor* output_norm() const { return output_norm_; }
    float norm_eps() const { return norm_eps_; }
    // What stream `stream` (from 0) starts from besides the state, [h].
    std::span<const float> embedding(int stream) const;
    // What the root's token embedding [h] adds to that. Only where streams read it.
    void add_root(std::span<const float> token, std::span<float> state) const;
    uint64_t size_bytes() const;

  private:
    // An adapter's matrix, waiting for memory.
    struct Upload {
        ggml_tensor* tensor;
        std::vector<uint8_t> bytes;
    };

    void find_layers();
    StreamLayer layer_of_base(int number) const;
    void check_names(int number) const;
    void find_output_norm();
    ggml_tensor* base_tensor(const std::string& name, bool wanted) const;
    Linear base_matrix(int number, const std::string& name) const;
    void load_adapters();
    void declare_adapters(int layer);
    Adapter declare_adapter(int layer, const std::vector<std::string>& matrices);
    ggml_tensor* declare(const std::string& name, const std::vector<float>& values, int64_t columns);
    std::vector<float> numbers(const std::string& name, const std::vector<int64_t>& shape) const;

    const LlamaModel& model_;
    const GgufFile& file_;
    const StreamParams& params_;
    ggml_backend_dev_t device_;
    std::vector<std::pair<std::string, ggml_tensor*>> base_;
    std::vector<StreamLayer> layers_;
    ggml_tensor* output_norm_ = nullptr;
    float norm_eps_ = 0;
    std::vector<float> embeddings_;
    std::vector<float> root_scale_;  // factors, or else
    std::vector<float> root_a_,
        root_b_;  // a matrix, b * (a * x); transposed, so that no sum waits for its own last step
    // Matrices that the kernels serve, in the kernels' buffer type.
    DeviceTensors tensors_, packed_;
    std::vector<Upload> uploads_;
};

}  // namespace medusa
