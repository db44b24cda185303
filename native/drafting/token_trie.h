// Paths of tokens below a root as one tree, each common beginning once.
#pragma once

#include <vector>

#include "decoding/drafter.h"

namespace medusa {

class TokenTrie {
  public:
    static constexpr int root = 0;

    void clear(Token root_token);
    // The child of `parent` that carries `token`, made where there is none. hidden: it need not be accepted; a node
    // stays hidden until it is asked for otherwise.
    int child(int parent, Token token, float q, bool hidden);
    int size() const { return static_cast<int>(nodes_.size()); }
    // The tree goes to `tree`, which `out` refers to. Afterwards place() tells where a node has come to stand.
    void build(Tree& tree, Draft& out);
    int place(int node) const { return places_[node]; }

  private:
    struct Node {
        Token token;
        float q;
        int parent, depth;
        bool hidden;
    };
    std::vector<Node> nodes_;
    std::vector<int> places_;
};

}  // namespace medusa
