// Draft trees: the shape that one verify step decodes.
#pragma once

#include <vector>

#include "base/common.h"

namespace medusa {

// A path of ranks: {0, 2} is the third-ranked token of head 2 below the best token of head 1.
using Choice = std::vector<int>;

// Root plus drafted nodes. Node 0 is the root, parents come before children, siblings have distinct ranks.
// Sequence ids are leaf indices: a node is decoded with the ids of all leaves below it, so that each leaf's sequence
// holds exactly its own path (the attention mask is the ancestor closure).
class Tree {
  public:
    // libllama's LLAMA_MAX_SEQ limits the leaves; one byte for a node index limits the rest.
    static constexpr int max_size = 256;

    Tree() : Tree(std::vector<Choice>{}) {}
    // Accepts the choices in any order and sorts them stably by depth. Throws Error for an empty path, a negative
    // rank, a duplicate, an orphan (a path without its parent), or more than max_size nodes.
    explicit Tree(std::vector<Choice> choices);

    // The tree whose node i hangs below parents[i] (-1: the root), siblings ranked in order. Throws Error unless
    // parents come first and depths never descend.
    static Tree from_parents(const std::vector<int>& parents);

    // Nodes that are decoded like the others but never accepted: for a drafter that wants to know what the model says
    // there. hidden: by node; all nodes below a hidden one are hidden.
    void hide(const std::vector<bool>& hidden);
    // Whether there are any.
    bool hides() const;

    // Gives each node a sequence with its own number, instead of one for each leaf: trees of one size then have equally
    // many. A node is decoded with its own sequence and those of all nodes below it.
    void follow_nodes();

    // The part of the tree that `head_count` heads of `ranks` ranks can fill; at most `max_nodes` nodes (with root).
    Tree clipped(int head_count, int ranks, int max_nodes = max_size) const;

    int size() const { return static_cast<int>(parents_.size()); }
    int depth() const { return depths_.back(); }
    int max_rank() const;
    // Number of sequences.
    int leaf_count() const { return leaf_count_; }
    const std::vector<Choice>& choices() const { return choices_; }
    const std::vector<int>& parents() const { return parents_; }
    int parent(int node) const { return parents_[node]; }
    int depth_of(int node) const { return depths_[node]; }
    int rank(int node) const { return ranks_[node]; }
    // From the root down to the node.
    std::vector<int> path(int node) const;
    // By rank; only those that may be accepted.
    const std::vector<int>& children(int node) const { return children_[node]; }
    const std::vector<int>& sequences(int node) const { return sequences_[node]; }

  private:
    void index_leaves();

    std::vector<Choice> choices_;
    std::vector<int> parents_, depths_, ranks_;
    std::vector<std::vector<int>> children_;
    std::vector<std::vector<int>> sequences_;
    int leaf_count_ = 1;
};

// The most that the trees of a session have.
struct TreeBounds {
    int leaves = 1;
    int nodes = 1;
};

}  // namespace medusa
