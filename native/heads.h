// The weights of draft heads, checked against the base model and on its backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ggml-cpp.h"
#include "llama_api.h"
#include "tree.h"

namespace medusa {

enum class LmHead { own, base, draft_vocab };

// Weights of K heads of L residual blocks each (Medusa 2.1), validated against the base model. Heads are stacked, so
// that one matrix product serves all of them: block weights [h, h, K], an own lm_head [h, V, K].
class Heads {
  public:
    // A sidecar or a single file. Throws Error for anything that does not fit the base model.
    Heads(std::shared_ptr<LlamaModel> model, const std::string& path);

    const LlamaModel& model() const { return *model_; }
    const std::string& kind() const { return kind_; }
    int head_count() const { return head_count_; }
    int block_count() const { return block_count_; }
    LmHead lm_head() const { return lm_head_; }
    int output_rows() const { return output_rows_; }
    // [head][rank]; empty when the file has none.
    const std::vector<std::vector<float>>& accuracy() const { return accuracy_; }
    const std::vector<Choice>& tree() const { return tree_; }
    uint64_t size_bytes() const;
    ggml_backend_dev_t device() const { return device_; }
    // Base token of an lm_head row.
    Token token(int row) const { return d2t_.empty() ? row : d2t_[row]; }

    ggml_tensor* block_weight(int block) const { return weights_[block]; }  // [h, h, K]
    ggml_tensor* block_bias(int block) const { return biases_[block]; }     // [h, K] or nullptr
    ggml_tensor* output() const { return output_; }                         // [h, rows] or, per head, [h, rows, K]
    bool output_per_head() const { return output_per_head_; }
    ggml_tensor* output_bias() const { return output_bias_; }  // [rows, K] or nullptr

  private:
    void read_metadata();
    void read_tree();
    void read_draft_vocabulary();
    void check_tensor_names() const;
    void declare_blocks();
    void declare_output();
    void allocate();
    void upload();
    void upload_rows_of_base();
    // A tensor of the file, checked against the wanted shape; nullptr when it is absent and optional.
    const TensorInfo* expect(const std::string& name, std::vector<int64_t> shape, bool optional = false) const;
    // Declares a tensor that stacks `names` (same type and shape each) along its last dimension.
    ggml_tensor* stack(ggml_context* context, const std::vector<std::string>& names, const std::vector<int64_t>& shape,
                       bool optional);
    const TensorInfo& base_output_info() const;

    std::shared_ptr<LlamaModel> model_;
    GgufFile file_;
    ggml_backend_dev_t device_;
    std::string kind_;
    int head_count_ = 0;
    int block_count_ = 0;
    LmHead lm_head_ = LmHead::own;
    int output_rows_ = 0;
    std::vector<std::vector<float>> accuracy_;
    std::vector<Choice> tree_;
    std::vector<Token> d2t_;
    // The lm_head apart from the rest: it may lie in the kernels' own buffer type.
    ggml_context_ptr context_, output_context_;
    ggml_backend_buffer_ptr buffer_, output_buffer_;
    std::vector<ggml_tensor*> weights_, biases_;
    ggml_tensor* output_ = nullptr;
    ggml_tensor* output_bias_ = nullptr;
    bool output_per_head_ = false;      // own lm_heads, over the base's vocabulary or a draft vocabulary
    bool output_is_base_rows_ = false;  // the rows d2t of the base's output matrix, gathered at load time
    struct Stacked {
        ggml_tensor* tensor;
        std::vector<std::string> names;
    };
    std::vector<Stacked> stacked_;
};

}  // namespace medusa
