// Drafts after a node that the host has accepted: a graph of the heads' own, on states that stay on the device.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "drafting/level_source.h"
#include "heads/graph.h"
#include "in_graph/drafts.h"

namespace medusa::in_graph {

// Levels from which the host draws tokens (rejection sampling): a graph for each, since what lies below a node is asked
// for only once its token is known. States stay on the device; for each level the likeliest tokens come with their
// probabilities.
class DrawnLevels {
  public:
    // states [h, Tree::max_size]: of the newest decode. Throws OutOfMemory.
    DrawnLevels(const Heads& heads, ggml_backend_t backend, ggml_tensor* states);

    // Starts after `node` of those. The prefix layer, if any, has begun.
    void begin(Drafts& drafts, int node);
    // As in LevelSource, for up to proposal_width ranks.
    void level(Drafts& drafts, int depth, std::span<const Token> paths, int ranks, LevelDrafts& out);

  private:
    struct Level {
        DeviceGraph graph;
        ggml_tensor* tokens;  // I32 [depth * columns] of paths, from the root on; nullptr for heads that read none
    };
    Level& level_for(Drafts& drafts, int depth, int64_t columns);

    const Heads& heads_;
    ggml_backend_t backend_;
    ggml_tensor* states_;
    int ranks_;  // how many come to the host
    DeviceTensors tensors_{1};
    ggml_tensor* state_ = nullptr;  // F32 [h, 1]: what the heads read in this step
    std::unique_ptr<DeviceGraph> first_;
    ggml_tensor* node_ = nullptr;                                       // F32 [1, 1]: its input
    std::map<std::pair<int, int64_t>, std::unique_ptr<Level>> levels_;  // by depth and columns
};

// Drafts after a node that the host has accepted: a graph of the heads' own, on states that stay on the device.
class SecondGraph {
  public:
    // Throws Error, or OutOfMemory.
    explicit SecondGraph(const Heads& heads);

    // For a graph with states [h, n]: keeps them for the next draft.
    static constexpr size_t kept_tensors = 4;
    ggml_tensor* keep(ggml_context* c, ggml_tensor* states);
    // As Drafts::build() returns them, after `node` of the newest states and the token after it. The prefix layer, if
    // any, has begun.
    std::span<const float> draft(Drafts& drafts, int node, Token next);
    // Without drafts, for heads behind such a layer: keeps what it needs from the path to `node`.
    void follow(Prefix& prefix, int node);
    // Where tokens are drawn: asked level by level, after `node`.
    DrawnLevels& drawn(Drafts& drafts, int node);

  private:
    struct Graph {
        std::unique_ptr<DeviceGraph> graph;
        ggml_tensor* input;  // F32 [1, 2]: the node, the token after it
        GreedyAcceptance accepted;
    };
    Graph begin(size_t most_tensors);
    std::span<const float> compute(Graph& graph, int node, Token next);

    const Heads& heads_;
    ggml_backend_ptr backend_;
    DeviceTensors tensors_{1};
    ggml_tensor* states_ = nullptr;  // F32 [h, Tree::max_size]
    Graph drafts_{}, follows_{};
    std::unique_ptr<DrawnLevels> drawn_;
};

}  // namespace medusa::in_graph
