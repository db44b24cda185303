// Draft heads in the model's own graph: the candidates of a tree, level by level.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "decoding/tree.h"
#include "heads/prefix_layer.h"
#include "heads/weights.h"
#include "in_graph/acceptance.h"
#include "in_graph/prefix.h"

namespace medusa::in_graph {

// Of one depth: the `ranks` likeliest tokens below each of `columns` nodes. One column of heads that do not read the
// path: the same below all.
struct LevelShape {
    int columns = 1, ranks = 1;

    int size() const { return columns * ranks; }
};

// Trees that are grown on the host from what was drafted: the likeliest `ranks` below each of the `width` likeliest
// nodes of a level.
struct GrownShape {
    int depth, ranks, width;
};

// A tree, of which the first nodes will be asked for, or grown ones.
using DraftShape = std::variant<Tree, GrownShape>;

class Drafts {
  public:
    virtual ~Drafts() = default;

    // Of depth 1, 2, ...
    const std::vector<LevelShape>& levels() const { return levels_; }
    // Whether probabilities come along.
    bool grown() const { return grown_; }
    // states [h, n] of a tree's nodes, of which one was accepted. Returns F32 numbers: rows of the heads' output
    // matrices, level by level, [columns][ranks]; grown: then the probability of each of them, then, where heads read
    // the path, of each level from the second on the places of its columns among the rows of the level above.
    virtual ggml_tensor* build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) = 0;
    // That build() makes.
    virtual size_t most_tensors() const = 0;

    // Of each decode, in turn: a tree at `position`; once the graph is there; so many nodes were accepted (0: not
    // known which).
    void begin(const Tree& tree, int position);
    void set_inputs();
    void end(int accepted);
    // Tokens from `position` on are gone.
    void rolled_back(int position);

  protected:
    // prefix: of heads behind such a layer, else null.
    explicit Drafts(std::unique_ptr<Prefix> prefix) : prefix_(std::move(prefix)) {}
    // What the heads read, [h, 1]: the accepted node's state, or the layer's output there.
    ggml_tensor* state(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted);

    std::vector<LevelShape> levels_;
    bool grown_ = false;

  private:
    std::unique_ptr<Prefix> prefix_;
};
inline constexpr size_t state_tensors = 64 + prefix_graph_tensors;  // that state() makes, at most

// What heads read that the graph does not have; empty: nothing.
std::string heads_need(const Heads& heads);
// Of heads that need no more. Throws OutOfMemory where the device has no room for what it takes beside the heads.
std::unique_ptr<Drafts> make_drafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size);

}  // namespace medusa::in_graph
