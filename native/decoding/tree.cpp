#include "decoding/tree.h"

#include <algorithm>
#include <map>

namespace medusa {
namespace {

std::string text(const Choice& choice) {
    std::string out = "[";
    for (size_t i = 0; i < choice.size(); ++i) out += (i ? ", " : "") + std::to_string(choice[i]);
    return out + "]";
}

}  // namespace

Tree::Tree(std::vector<Choice> choices) : choices_(std::move(choices)) {
    std::stable_sort(choices_.begin(), choices_.end(),
                     [](const Choice& a, const Choice& b) { return a.size() < b.size(); });
    if (choices_.size() + 1 > static_cast<size_t>(max_size)) {
        throw Error("tree: " + std::to_string(choices_.size()) + " choices, at most " + std::to_string(max_size - 1) +
                    " are possible: use a smaller tree");
    }
    std::map<Choice, int> index{{Choice{}, 0}};
    parents_ = {-1};
    depths_ = {0};
    ranks_ = {-1};
    children_.resize(choices_.size() + 1);
    for (const Choice& choice : choices_) {
        if (choice.empty()) throw Error("tree: an empty choice: a choice lists one rank per depth, such as [0, 1]");
        if (choice.back() < 0) throw Error("tree: negative rank in " + text(choice) + ": ranks count from 0");
        const int node = static_cast<int>(parents_.size());
        const auto parent = index.find(Choice(choice.begin(), choice.end() - 1));
        if (parent == index.end()) {
            throw Error("tree: choice " + text(choice) + " is an orphan: add its parent " +
                        text(Choice(choice.begin(), choice.end() - 1)));
        }
        if (!index.emplace(choice, node).second) throw Error("tree: choice " + text(choice) + " is listed twice");
        parents_.push_back(parent->second);
        depths_.push_back(static_cast<int>(choice.size()));
        ranks_.push_back(choice.back());
        auto& siblings = children_[parent->second];
        const auto by_rank = [&](int rank, int sibling) { return rank < ranks_[sibling]; };
        siblings.insert(std::upper_bound(siblings.begin(), siblings.end(), choice.back(), by_rank), node);
    }
    index_leaves();
}

void Tree::index_leaves() {
    sequences_.assign(size(), {});
    leaf_count_ = 0;
    for (int node = 0; node < size(); ++node) {
        if (!children_[node].empty()) continue;
        for (int up = node; up >= 0; up = parents_[up]) sequences_[up].push_back(leaf_count_);
        ++leaf_count_;
    }
}

Tree Tree::from_parents(const std::vector<int>& parents) {
    if (parents.empty() || parents[0] != -1) throw Error("tree: the first parent is -1, the root's");
    std::vector<Choice> choices{{}};
    std::vector<int> children(parents.size(), 0);
    for (size_t node = 1; node < parents.size(); ++node) {
        const int parent = parents[node];
        if (parent < 0 || parent >= static_cast<int>(node)) {
            throw Error("tree: node " + std::to_string(node) + " has parent " + std::to_string(parent) +
                        ": parents come before their children");
        }
        Choice choice = choices[parent];
        choice.push_back(children[parent]++);
        if (choice.size() < choices.back().size()) throw Error("tree: the nodes are not sorted by depth");
        choices.push_back(std::move(choice));
    }
    choices.erase(choices.begin());
    return Tree(std::move(choices));
}

void Tree::hide(const std::vector<bool>& hidden) {
    for (std::vector<int>& children : children_) {
        std::erase_if(children, [&](int child) { return hidden[child]; });
    }
}

bool Tree::hides() const {
    int shown = 1;
    for (const std::vector<int>& children : children_) shown += static_cast<int>(children.size());
    return shown != size();
}

void Tree::follow_nodes() {
    sequences_.assign(size(), {});
    leaf_count_ = size();
    for (int node = 0; node < size(); ++node) {
        for (int up = node; up >= 0; up = parents_[up]) sequences_[up].push_back(node);
    }
}

std::vector<int> Tree::path(int node) const {
    std::vector<int> path;
    for (int up = node; up >= 0; up = parents_[up]) path.push_back(up);
    std::reverse(path.begin(), path.end());
    return path;
}

int Tree::max_rank() const {
    return *std::max_element(ranks_.begin(), ranks_.end());
}

Tree Tree::clipped(int head_count, int ranks, int max_nodes) const {
    std::vector<Choice> kept;
    for (const Choice& choice : choices_) {
        if (static_cast<int>(kept.size()) + 1 >= max_nodes) break;
        const bool fits = static_cast<int>(choice.size()) <= head_count &&
                          std::all_of(choice.begin(), choice.end(), [&](int rank) { return rank < ranks; });
        if (fits) kept.push_back(choice);
    }
    return Tree(std::move(kept));
}

}  // namespace medusa
