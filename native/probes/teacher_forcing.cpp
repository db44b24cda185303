#include "probes/teacher_forcing.h"
#include "llama/context.h"

#include <algorithm>

#include "decoding/sampler.h"
#include "llama/target.h"

namespace medusa {
namespace {

constexpr Token filler = 0;

void check(bool fits, const char* what) {
    if (!fits) throw Error(std::string("teacher_forced: ") + what);
}

void check_path(const Tree& tree, const std::vector<int>& path) {
    check(!path.empty() && path[0] == 0, "a path starts at the root");
    for (size_t i = 1; i < path.size(); ++i) {
        check(path[i] > 0 && path[i] < tree.size() && tree.parent(path[i]) == path[i - 1], "no such path in the tree");
    }
}

}  // namespace

TeacherForced teacher_forced(std::shared_ptr<LlamaModel> model, std::span<const Token> tokens, int prompt_length,
                             std::span<const std::vector<int>> parents, std::span<const std::vector<int>> paths,
                             Threads threads) {
    check(prompt_length >= 1 && prompt_length <= static_cast<int>(tokens.size()), "prompt_length is not in 1..tokens");
    check(parents.size() == paths.size(), "one tree for each path");
    std::vector<Tree> trees;
    TreeBounds bounds;
    for (size_t i = 0; i < paths.size(); ++i) {
        trees.push_back(Tree::from_parents(parents[i]));
        check_path(trees[i], paths[i]);
        bounds = {std::max(bounds.leaves, trees[i].leaf_count()), std::max(bounds.nodes, trees[i].size())};
    }
    ContextParams params;
    params.context_size = static_cast<int>(tokens.size()) + bounds.nodes;
    params.threads = threads;
    const bool hidden = bounds.nodes > 1;  // as in a session with heads
    LlamaTarget target(std::move(model), params, bounds, hidden);

    check(target.prefill(tokens.first(prompt_length), nullptr) == DecodeStatus::ok, "the prompt could not be decoded");
    const Tree plain;
    TeacherForced out;
    int row = 0;
    out.tokens.push_back(argmax(target.logits(row)));
    auto rest = tokens.subspan(prompt_length);
    for (size_t step = 0; !rest.empty(); ++step) {
        const Tree& tree = step < trees.size() ? trees[step] : plain;
        std::vector<int> path = step < paths.size() ? paths[step] : std::vector<int>{0};
        path.resize(std::min(path.size(), rest.size()));
        std::vector<Token> nodes(tree.size(), filler);
        for (size_t i = 0; i < path.size(); ++i) nodes[path[i]] = rest[i];
        check(target.verify(tree, nodes, nullptr) == DecodeStatus::ok, "the text could not be decoded");
        for (const int node : path) out.tokens.push_back(argmax(target.logits(node)));
        row = path.back();
        rest = rest.subspan(path.size());
        if (!rest.empty()) target.commit(tree, path);
    }
    const auto logits = target.logits(row);
    out.last_logits.assign(logits.begin(), logits.end());
    return out;
}

}  // namespace medusa
