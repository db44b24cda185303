// Rows of the base's token embedding matrix, as numbers.
#pragma once

#include <span>
#include <vector>

#include "llama/model.h"

namespace medusa {

class TokenEmbeddings {
  public:
    // Rows are multiplied by `scale`. Throws Error where the base has no usual embedding matrix. The model must outlive
    // this object.
    TokenEmbeddings(const LlamaModel& model, float scale);

    // out: embedding_size() numbers.
    void row(Token token, std::span<float> out);

  private:
    const LlamaModel& model_;
    float scale_;
    const TensorInfo* info_;        // in the file
    const char* loaded_ = nullptr;  // in memory, if the processor can read it there
    std::vector<char> bytes_;       // for one row read from the file
};

}  // namespace medusa
