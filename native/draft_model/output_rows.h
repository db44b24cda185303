// Rows of a drafter's output matrix, multiplied in a graph of our own: of a vocabulary of 150,000 to 260,000 tokens, a
// fifth is nearly all that text is made of (FR-Spec, arXiv:2502.14856).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "drafting/level_source.h"
#include "llama/device_graph.h"
#include "llama/device_tensors.h"
#include "llama/model.h"

namespace medusa {

// The rows are those of the first tokens, which tokenizers number by how often they found them, and of the tokens that
// the text had in addition. Or they are all that the file has, where the drafter has a vocabulary of its own (d2t).
class OutputRows {
  public:
    static constexpr int first = 32768;
    static constexpr int share_of_text = 32;  // for so many of the first tokens, one more of the text

    // wanted: how many of the first tokens; none: `first`, if that leaves out at least half of the vocabulary. Returns
    // null where all rows are to be multiplied in libllama's graph: other drafters than these, and devices.
    static std::unique_ptr<OutputRows> of(const LlamaModel& drafter, const LlamaModel& model,
                                          std::optional<int> wanted);

    // A token of the text.
    void came(Token token);
    // Adds the `ranks` likeliest tokens after each of the states [n][h], with their probabilities among all rows.
    void add_likeliest(std::span<const float> states, int ranks, int threads, LevelDrafts& out);

  private:
    struct Matrix {
        const GgufFile* file;
        const TensorInfo* info;
    };
    struct Product {
        DeviceGraph graph;
        ggml_tensor* input;
    };

    OutputRows(const LlamaModel& drafter, const LlamaModel& model, Matrix matrix, int wanted);
    static std::optional<Matrix> matrix_of(const LlamaModel& drafter, const LlamaModel& model);
    ggml_tensor* declare(const LlamaModel& model, int64_t rows);
    std::vector<char> read(std::span<const Token> rows) const;
    void declare_norm(const LlamaModel& drafter);
    void choose_rows_of_text(const LlamaModel& model, int most);
    Product& product_for(int states);

    const Matrix matrix_;
    const int64_t width_;
    ggml_backend_ptr backend_;
    DeviceTensors tensors_, packed_;
    ggml_tensor *first_ = nullptr, *of_text_ = nullptr, *norm_ = nullptr;  // the last two may be missing
    float epsilon_ = 0;
    std::vector<Token> tokens_;             // of the rows
    std::vector<uint64_t> used_;            // [of_text]: when a row's token was last in the text
    std::unordered_map<Token, int> place_;  // among the rows of the text
    uint64_t clock_ = 0;
    bool changed_ = false;
    std::vector<char> bytes_;                                     // of the rows of the text
    std::unordered_map<int, std::unique_ptr<Product>> products_;  // by number of states
    std::vector<int> likeliest_;
};

}  // namespace medusa
