// What a model makes of a given text: the references for drafted text and other kernels.
#include <algorithm>
#include <cmath>

#include "decoding/sampler.h"
#include "llama/target.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

constexpr int sequence[] = {0};
constexpr Token filler = 0;

double cost(std::span<const float> logits, Token token) {
    const float highest = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(logit - highest);
    return std::log(sum) + highest - logits[token];
}

std::pair<std::vector<Token>, std::vector<double>> score(std::shared_ptr<LlamaModel> model,
                                                         const std::vector<Token>& tokens, int width, int n_threads) {
    const nb::gil_scoped_release released;
    const int count = static_cast<int>(tokens.size());
    if (count < 1) throw Error("score: there are no tokens");
    model->require_tokens(tokens, "score: ");
    width = std::min(width, count);
    ContextParams params;
    params.context_size = count;
    params.max_outputs = width;
    params.threads = resolve_threads(n_threads);
    LlamaContext context(std::move(model), params);
    if (width < 1 || width > context.batch_size()) {
        throw Error("score: the width must be within 1.." + std::to_string(context.batch_size()));
    }
    std::vector<Token> best;
    std::vector<double> costs;
    std::vector<BatchRow> rows;
    for (int begin = 0; begin < count; begin += width) {
        const int end = std::min(begin + width, count);
        rows.clear();
        for (int i = begin; i < end; ++i) rows.push_back({tokens[i], i, sequence, true});
        if (context.decode(rows, nullptr) != DecodeStatus::ok) throw Error("score: the text could not be decoded");
        for (int i = begin; i < end; ++i) {
            const auto logits = context.logits(i - begin);
            best.push_back(argmax(logits));
            if (i + 1 < count) costs.push_back(cost(logits, tokens[i + 1]));
        }
    }
    return {std::move(best), std::move(costs)};
}

void check(bool fits, const char* what) {
    if (!fits) throw Error(std::string("teacher_forced: ") + what);
}

void check_path(const Tree& tree, const std::vector<int>& path) {
    check(!path.empty() && path[0] == 0, "a path starts at the root");
    for (size_t i = 1; i < path.size(); ++i) {
        check(path[i] > 0 && path[i] < tree.size() && tree.parent(path[i]) == path[i - 1], "no such path in the tree");
    }
}

std::pair<std::vector<Token>, std::vector<float>> teacher_forced(std::shared_ptr<LlamaModel> model,
                                                                 const std::vector<Token>& tokens, int prompt_length,
                                                                 const std::vector<std::vector<int>>& parents,
                                                                 const std::vector<std::vector<int>>& paths,
                                                                 int n_threads) {
    const nb::gil_scoped_release released;
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
    params.threads = resolve_threads(n_threads);
    const bool hidden = bounds.nodes > 1;  // as in a session with heads
    LlamaTarget target(std::move(model), params, bounds, hidden);

    auto rest = std::span(tokens).subspan(static_cast<size_t>(prompt_length));
    check(target.prefill({tokens.data(), static_cast<size_t>(prompt_length)}, nullptr) == DecodeStatus::ok,
          "the prompt could not be decoded");
    const Tree plain;
    int row = 0;
    std::vector<Token> said{argmax(target.logits(row))};
    for (size_t step = 0; !rest.empty(); ++step) {
        const Tree& tree = step < trees.size() ? trees[step] : plain;
        std::vector<int> path = step < paths.size() ? paths[step] : std::vector<int>{0};
        path.resize(std::min(path.size(), rest.size()));
        std::vector<Token> nodes(tree.size(), filler);
        for (size_t i = 0; i < path.size(); ++i) nodes[path[i]] = rest[i];
        check(target.verify(tree, nodes, nullptr) == DecodeStatus::ok, "the text could not be decoded");
        for (const int node : path) said.push_back(argmax(target.logits(node)));
        row = path.back();
        rest = rest.subspan(path.size());
        if (!rest.empty()) target.commit(tree, path);
    }
    const auto logits = target.logits(row);
    return {std::move(said), {logits.begin(), logits.end()}};
}

std::vector<double> time_prefill(std::shared_ptr<LlamaModel> model, int width, int position, int repeats,
                                 int n_threads) {
    const nb::gil_scoped_release released;
    constexpr Token some_token = 1;
    ContextParams params;
    params.context_size = position + width;
    params.threads = resolve_threads(n_threads);
    LlamaTarget target(std::move(model), params, TreeBounds(), false);
    const auto prefill = [&](int count) {
        if (target.prefill(std::vector<Token>(count, some_token), nullptr) == DecodeStatus::ok) return;
        throw Error("timing: the context is too small");
    };
    prefill(position);
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
        Stopwatch watch;
        prefill(width);
        times.push_back(watch.lap());
        target.truncate(position);
    }
    return times;
}

}  // namespace

void bind_texts(nb::module_& m) {
    m.def("score", &score, "model"_a, "tokens"_a, nb::kw_only(), "width"_a = 64, "n_threads"_a = 0,
          "Decodes a text `width` tokens at a time (1..512; the last pass takes what is left), from an empty cache.\n\n"
          "Returns the model's argmax after each token, and -ln p of each token but the first, given those before it.");
    m.def("teacher_forced", &teacher_forced, "model"_a, "tokens"_a, nb::kw_only(), "prompt_length"_a,
          "parents"_a = std::vector<std::vector<int>>{}, "paths"_a = std::vector<std::vector<int>>{}, "n_threads"_a = 0,
          "The model's argmax after tokens[:i] for i in prompt_length .. len(tokens), and its logits after all of\n"
          "them.\n\n"
          "Step i verifies the tree of parents[i] (Tree::from_parents) with the next tokens on the nodes of paths[i]\n"
          "(from the root downwards) and fillers on the others, then commits that path; where these have ended, it\n"
          "decodes plainly. With `parents` and `paths` of a Generation it repeats the batch widths and the cache\n"
          "layout without the drafts and their acceptance (docs/design.md, Lossless: tier 3).");
    m.def("time_prefill", &time_prefill, "model"_a, "width"_a, nb::kw_only(), "position"_a = 64, "repeats"_a = 5,
          "n_threads"_a = 0,
          "Milliseconds of each of `repeats` passes over `width` tokens of a prompt, behind `position` others.");
}

}  // namespace medusa::testing
