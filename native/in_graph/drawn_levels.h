// Levels of which the host draws tokens (rejection sampling): a graph of each, since what lies below a node is asked
// for once its token is known. States stay on the device; of each level the likeliest tokens come with their
// probabilities.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "drafting/level_source.h"
#include "heads/graph.h"
#include "in_graph/drafts.h"

namespace medusa::in_graph {

class DrawnLevels {
  public:
    // states [h, Tree::max_size]: of the newest decode. Throws OutOfMemory.
    DrawnLevels(const Heads& heads, ggml_backend_t backend, ggml_tensor* states);

    // Behind `node` of those. The prefix layer, if any, has begun.
    void begin(Drafts& drafts, int node);
    // As LevelSource has it, of up to proposal_width ranks.
    void level(Drafts& drafts, int depth, std::span<const Token> paths, int ranks, LevelDrafts& out);

  private:
    struct Level {
        HeadsGraph graph;
        ggml_tensor* tokens;  // I32 [depth * columns] of paths, from the root on; of heads that read none: nullptr
    };
    Level& level_for(Drafts& drafts, int depth, int64_t columns);

    const Heads& heads_;
    ggml_backend_t backend_;
    ggml_tensor* states_;
    int ranks_;  // that come
    ggml_context_ptr context_;
    ggml_backend_buffer_ptr buffer_;
    ggml_tensor* state_ = nullptr;  // F32 [h, 1]: what the heads read in this step
    std::unique_ptr<HeadsGraph> first_;
    ggml_tensor* node_ = nullptr;                                       // F32 [1, 1]: its input
    std::map<std::pair<int, int64_t>, std::unique_ptr<Level>> levels_;  // by depth and columns
};

}  // namespace medusa::in_graph
