// Rows of the base's token embedding matrix, as numbers.
#pragma once

#include <span>
#include <vector>

#include "llama/model.h"

namespace medusa {

class TokenEmbeddings {
  public:
    // The rows come times `scale`. Throws Error where the base has no usual embedding matrix. The model must outlive
    // this.
    TokenEmbeddings(const LlamaModel& model, float scale);

    // out: embedding_size() numbers.
    void row(Token token, std::span<float> out);

  private:
    const LlamaModel& model_;
    float scale_;
    const TensorInfo* info_;        // as it lies in the file
    const char* loaded_ = nullptr;  // as it lies in memory that the processor can read, where it does
    std::vector<char> bytes_;       // of one row read from the file
};

}  // namespace medusa
