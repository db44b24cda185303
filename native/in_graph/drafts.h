// Draft heads in the model's own graph: the candidates of a tree, level by level.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "decoding/tree.h"
#include "heads/weights.h"
#include "in_graph/acceptance.h"
#include "in_graph/prefix.h"

namespace medusa::in_graph {

// At one depth: the `ranks` likeliest tokens below each of `columns` nodes. One column for heads that do not read the
// path: the same below all nodes.
struct LevelShape {
    int columns = 1, ranks = 1;

    int size() const { return columns * ranks; }
};

// Trees grown on the host from what was drafted: the `ranks` likeliest tokens below each of the `width` likeliest nodes
// of a level.
struct GrownShape {
    int depth, ranks, width;
    int most;  // numbers that come to the host
};

// For `depth` heads of `rows` rows. likeliest: how many numbers per node drafters learn from; 0: none.
GrownShape grown_shape(int depth, int rows, int likeliest);

// A tree whose first nodes will be asked for, or grown trees.
using DraftShape = std::variant<Tree, GrownShape>;

// The levels of such trees, of depth 1, 2, ...: for heads that do or do not read the path.
std::vector<LevelShape> levels_of(const DraftShape& shape, bool reads_path);
// How many numbers grown trees bring to the host, as in Drafts::build().
int numbers_of_grown(const std::vector<LevelShape>& levels, bool reads_path);

class Drafts {
  public:
    Drafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size);
    virtual ~Drafts() = default;

    // Of depth 1, 2, ...
    const std::vector<LevelShape>& levels() const { return levels_; }
    // Whether probabilities are included.
    bool grown() const { return grown_; }
    // states [h, n] of a tree's nodes, one of which was accepted. Returns F32 numbers: rows of the heads' output
    // matrices, level by level, [columns][ranks]; grown: then the probability of each, then, if heads read the path,
    // for each level from the second on the places of its columns among the rows of the level above.
    virtual ggml_tensor* build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) = 0;
    // Logits of level `depth` alone, [rows, columns], from heads that read `state` [h, 1] and the paths to nodes, I32
    // [depth * columns] tokens from the root on; one column for heads that read no path.
    virtual ggml_tensor* level_logits(ggml_context* c, ggml_tensor* state, int depth, ggml_tensor* paths) = 0;
    // Most that build() makes, and level_logits() including what chooses from them.
    virtual size_t most_tensors() const = 0;
    // What the heads read, [h, 1]: the accepted node's state, or the layer's output there.
    ggml_tensor* state(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted);

    // For heads behind a prefix layer, else null.
    Prefix* prefix() const { return prefix_.get(); }

  protected:
    const std::shared_ptr<Heads> heads_;
    const std::vector<LevelShape> levels_;
    const bool grown_;

  private:
    std::unique_ptr<Prefix> prefix_;
};
inline constexpr size_t state_tensors = 64 + prefix_graph_tensors;  // most that state() makes

// What heads read and the graph does not have; empty: nothing.
std::string heads_need(const Heads& heads);
// For heads that need no more. Throws OutOfMemory if the device has no room for what it takes besides the heads.
std::unique_ptr<Drafts> make_drafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size);
// For heads that read the path.
std::unique_ptr<Drafts> make_path_drafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size);

}  // namespace medusa::in_graph
