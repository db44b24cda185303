// The weights of draft heads, checked against the base model and on its backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "heads/metadata.h"
#include "heads/stream_weights.h"
#include "llama/device_tensors.h"
#include "llama/model.h"

namespace medusa {

// Hydra++'s attention layer: norms [h], matrices over q = head size * heads rows for queries, kv for keys.
struct PrefixWeights {
    ggml_tensor *attention_norm = nullptr, *feed_forward_norm = nullptr, *output_norm = nullptr;
    Linear query, key_value, output;  // [h, q]; keys, then values: [h, 2 * kv]; [q, h]
    Linear gate_up, down;             // gates, then the rest: [h, 2 * inner]; [inner, h]
};

// A recurrent head's cell: the linear residual [2h, h]; gates, then the rest: [2h, 2 * inner]; [inner, h].
struct RecurrentCell {
    Linear residual, gate_up, down;
};

// Writes the data of `parts`, one after the other. Reads in pieces; writes packed weights in one piece and all others
// as they come, so that a large matrix is never held twice.
void copy_to_backend(const GgufFile& file, const std::vector<const TensorInfo*>& parts, ggml_tensor* target);

// Weights of K heads with L residual blocks each, validated against the base model (h: its hidden size). Each is a
// matrix of its own, as the kernels want it; those that read the same input are stacked by rows into one product.
class Heads {
  public:
    // From a sidecar or a single file. Throws Error for anything that does not fit the base model.
    Heads(std::shared_ptr<LlamaModel> model, const std::string& path);

    const LlamaModel& model() const { return *model_; }
    const HeadsMetadata& metadata() const { return metadata_; }
    int head_count() const { return metadata_.head_count; }
    int block_count() const { return metadata_.block_count; }
    int output_rows() const { return metadata_.output_rows; }
    uint64_t size_bytes() const;
    ggml_backend_dev_t device() const { return device_; }
    // Base token of an lm_head row.
    Token token(int row) const { return metadata_.d2t.empty() ? row : metadata_.d2t[row]; }

    // Medusa: the first blocks of all heads, which share their input: [h, h * K].
    const Linear& first_blocks() const { return first_.front(); }
    // Hydra: the first block of a head, with its linear residual below: [h * (head + 2), 2 * h].
    const Linear& first_block(int head) const { return first_[head]; }
    // Blocks from 1: [h, h].
    const Linear& block(int head, int block) const { return blocks_[head][block - 1]; }
    // [h, output_rows]; the same one for all heads unless has_own_outputs().
    const Linear& output(int head) const { return outputs_[has_own_outputs() ? head : 0]; }
    const PrefixWeights& prefix() const { return prefix_; }
    const RecurrentCell& cell() const { return cell_; }
    // Null where this kind of heads has none.
    const StreamWeights* streams() const { return streams_.get(); }
    bool has_own_outputs() const { return own_outputs_; }

  private:
    // A tensor whose rows are those of several tensors of the file, one below the other.
    struct Stack {
        ggml_tensor* tensor;
        std::vector<const TensorInfo*> parts;
    };

    void declare_blocks();
    void declare_outputs();
    void declare_prefix();
    void declare_cell();
    int64_t rows_of(const std::string& name) const;
    ggml_tensor* declare_vector(const std::vector<std::string>& names, int64_t length);
    Linear declare(const std::vector<std::string>& names, int64_t columns, int64_t rows);
    ggml_tensor* declare_weight(const std::string& name, ggml_type type, int64_t columns, int64_t rows);
    size_t most_tensors() const;
    void upload();
    void upload_rows_of_base();
    // Tensors of the file that have one shape and type.
    std::vector<const TensorInfo*> expect_alike(const std::vector<std::string>& names,
                                                const std::vector<int64_t>& shape) const;
    const TensorInfo& base_output_info() const;

    std::shared_ptr<LlamaModel> model_;
    GgufFile file_;
    HeadsMetadata metadata_;
    ggml_backend_dev_t device_;
    // Matrices that the kernels serve lie in the kernels' buffer type, apart from the rest.
    DeviceTensors tensors_, packed_;
    std::vector<Linear> first_, outputs_;
    std::vector<std::vector<Linear>> blocks_;
    PrefixWeights prefix_;
    RecurrentCell cell_;
    std::unique_ptr<StreamWeights> streams_;
    bool own_outputs_ = false;
    ggml_tensor* rows_of_base_ = nullptr;  // the rows d2t of the base's output matrix, gathered at load time
    std::vector<Stack> stacks_;
};

}  // namespace medusa
