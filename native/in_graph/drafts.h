// Draft heads in the model's own graph: the candidates of a fixed tree, level by level.
#pragma once

#include <memory>
#include <vector>

#include "decoding/tree.h"
#include "heads/weights.h"

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
    // state [h, 1]: that of an accepted node; root [1]: the token after it, as F32. Rows of the heads' output matrices:
    // F32, level by level, [columns][ranks].
    virtual ggml_tensor* build(ggml_context* c, ggml_tensor* state, ggml_tensor* root) = 0;
    // That build() makes.
    virtual size_t most_tensors() const = 0;

  protected:
    std::vector<LevelShape> levels_;
};

// For trees that are `shape` or the first nodes of it. nullptr: heads of this kind draft on the host. Throws
// OutOfMemory where the device has no room for what it takes beside the heads.
std::unique_ptr<Drafts> make_drafts(std::shared_ptr<Heads> heads, const Tree& shape);

}  // namespace medusa::in_graph
