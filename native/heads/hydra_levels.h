// Hydra heads (Hydra 3): a head reads the hidden state and the tokens drafted so far, so levels are evaluated in turn.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "heads/graph.h"
#include "heads/levels.h"
#include "heads/token_embeddings.h"

namespace medusa {

// Logits of a head at n nodes, of cat(h, emb(root), emb(node 1), ..) [h * (head + 2), n] each: [rows, n].
ggml_tensor* hydra_logits(ggml_context* c, const Heads& heads, int head, ggml_tensor* paths);
// Tensors that it makes, at most.
size_t hydra_tensors(const Heads& heads);

// Evaluates a head at the nodes that are expanded, all of a level with one read of its weights and of the lm_head.
// Graphs are kept by depth and number of nodes.
class HydraLevels final : public HeadsLevels {
  public:
    HydraLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads, std::shared_ptr<PrefixCache> cache);

    std::span<const float> probabilities(int depth, std::span<const Token> paths) override;

  private:
    void begin_step(const DraftInput& input) override;
    struct Level {
        HeadsGraph graph;
        ggml_tensor* input;  // [h * (depth + 1), nodes]
    };
    Level& level_for(int depth, size_t nodes);
    std::unique_ptr<Level> build(int depth, size_t nodes);

    TokenEmbeddings embeddings_;
    std::vector<float> hidden_;
    std::vector<float> values_;  // inputs of a level, node by node: cat(h, emb(root), emb(node 1), ..)
    std::map<std::pair<int, size_t>, std::unique_ptr<Level>> levels_;
};

}  // namespace medusa
