#include "drafting/token_trie.h"

#include <algorithm>
#include <numeric>

namespace medusa {

void TokenTrie::clear(Token root_token) {
    nodes_.assign(1, {root_token, 1.0f, -1, 0, false});
    places_.assign(1, 0);
}

int TokenTrie::child(int parent, Token token, float q, bool hidden) {
    const auto same = std::find_if(nodes_.begin(), nodes_.end(),
                                   [&](const Node& node) { return node.parent == parent && node.token == token; });
    if (same != nodes_.end()) {
        same->hidden = same->hidden && hidden;
        return static_cast<int>(same - nodes_.begin());
    }
    nodes_.push_back({token, q, parent, nodes_[parent].depth + 1, hidden});
    return size() - 1;
}

void TokenTrie::build(Tree& tree, Draft& out) {
    std::vector<int> order(nodes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return nodes_[a].depth < nodes_[b].depth; });
    places_.resize(nodes_.size());
    for (int at = 0; at < size(); ++at) places_[order[at]] = at;
    std::vector<int> parents;
    std::vector<bool> hidden;
    out.tokens.clear();
    out.q.clear();
    out.drawn.clear();
    for (const int i : order) {
        const Node& node = nodes_[i];
        parents.push_back(node.parent < 0 ? -1 : places_[node.parent]);
        hidden.push_back(node.hidden);
        out.tokens.push_back(node.token);
        out.q.push_back(node.q);
        out.drawn.push_back(false);
    }
    tree = Tree::from_parents(parents);
    tree.hide(hidden);
    out.tree = &tree;
}

}  // namespace medusa
