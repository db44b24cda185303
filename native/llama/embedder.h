// Embeddings of texts: their tokens' states, pooled as the model's file says, of length one.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "llama/context.h"

namespace medusa {

class Embedder {
  public:
    // model: loaded for embeddings. longest: most tokens of a text; 0: as many as the model was trained on, at most
    // default_longest. Throws Error where the model was trained on fewer.
    Embedder(std::shared_ptr<LlamaModel> model, int longest, Threads threads);

    // A request that names no limit gets that of OpenAI's models.
    static constexpr int default_longest = 8192;

    int longest() const { return longest_; }
    int width() const { return model_->embedding_size(); }
    // [texts][width]; empty once `stop` says so. Throws Error for a text without tokens, one that is too long, and
    // for tokens outside the vocabulary.
    std::vector<float> embed(std::span<const std::vector<Token>> texts, const StopPoll& stop);

  private:
    void check(std::span<const std::vector<Token>> texts) const;
    // How many of the texts fit into one pass; at least one.
    size_t next_group(std::span<const std::vector<Token>> texts) const;
    // A context for texts of that many tokens together: the one there is, if it is large enough.
    void make_room(int tokens);
    // Adds the pooled states to `out`. False: stopped.
    bool pass(std::span<const std::vector<Token>> texts, const StopPoll& stop, std::vector<float>& out);

    std::shared_ptr<LlamaModel> model_;
    Pooling pooling_;
    int longest_;
    Threads threads_;
    bool whole_ = false;  // texts are decoded at once
    std::unique_ptr<LlamaContext> context_;
};

}  // namespace medusa
