// Draft heads in the model's own graph: the candidates of a fixed tree, level by level.
#pragma once

#include <memory>
#include <vector>

#include "decoding/tree.h"
#include "heads/weights.h"
#include "in_graph/acceptance.h"

namespace medusa::in_graph {

// Of one depth: the `ranks` likeliest tokens below each of `columns` nodes. One column: the same below all.
struct LevelShape {
    int columns = 1, ranks = 1;

    int size() const { return columns * ranks; }
};

class Drafts {
  public:
    virtual ~Drafts() = default;

    // Of depth 1, 2, ...
    const std::vector<LevelShape>& levels() const { return levels_; }
    // states [h, n] of a tree's nodes, of which one was accepted. Rows of the heads' output matrices: F32, level by
    // level, [columns][ranks].
    virtual ggml_tensor* build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) = 0;
    // Of each decode, in turn: a tree at `position`; once the graph is there; so many nodes were accepted (0: not
    // known which).
    virtual void begin(const Tree& tree, int position) {}
    virtual void set_inputs() {}
    virtual void end(int accepted) {}
    // Tokens from `position` on are gone.
    virtual void rolled_back(int position) {}
    // That build() makes.
    virtual size_t most_tensors() const = 0;

  protected:
    std::vector<LevelShape> levels_;
};

// For trees that are `shape` or the first nodes of it. nullptr: heads of this kind draft on the host. Throws
// OutOfMemory where the device has no room for what it takes beside the heads.
std::unique_ptr<Drafts> make_drafts(std::shared_ptr<Heads> heads, const Tree& shape, int context_size);

}  // namespace medusa::in_graph
