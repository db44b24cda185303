// A recurrent head (after Zhang et al. 2024, arXiv:2403.09919): one cell, applied once for each level of a tree.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "heads/levels.h"
#include "heads/token_embeddings.h"

namespace medusa {

// A node's state is made from its parent's state and its own token; the root's parent is the hidden state that the
// root was drawn from. All nodes of a level are computed together, with one read of the cell and of the output rows.
class RecurrentLevels final : public HeadsLevels {
  public:
    RecurrentLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads);

    std::span<const float> probabilities(int depth, std::span<const Token> paths) override;

  private:
    // For up to `width` nodes.
    struct Level {
        DeviceGraph graph;
        ggml_tensor *states, *embeddings;  // [h, width]: of the parents, of the nodes' tokens
        size_t width;
    };

    void begin_step(const DraftInput& input) override;
    std::span<const float> parent_state(std::span<const Token> path) const;
    Level& level_for(size_t nodes);
    std::unique_ptr<Level> build(size_t width);

    TokenEmbeddings embeddings_;
    std::vector<Token> paths_;           // of the newest level
    std::vector<float> states_;          // [nodes][h]: of that level; before the first one, the hidden state
    std::vector<float> inputs_, drawn_;  // parents' states and tokens' embeddings, node by node
    std::map<size_t, std::unique_ptr<Level>> levels_;
};

}  // namespace medusa
