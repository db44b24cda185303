// Typical acceptance and the nucleus rule: what they accept is what they draw from.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "decoding/accept_rules.h"

namespace medusa {
namespace {

float typical_threshold(const std::vector<Candidate>& distribution, const AcceptParams& params) {
    double entropy = 0.0;
    for (const Candidate& candidate : distribution) {
        if (candidate.p > 0.0f) entropy -= candidate.p * std::log(static_cast<double>(candidate.p));
    }
    return std::min(params.epsilon, params.delta * static_cast<float>(std::exp(-entropy)));
}

const Candidate& most_probable(const std::vector<Candidate>& distribution) {
    return *std::max_element(distribution.begin(), distribution.end(),
                             [](const Candidate& a, const Candidate& b) { return a.p < b.p; });
}

void renormalise(std::vector<Candidate>& distribution) {
    double sum = 0.0;
    for (const Candidate& candidate : distribution) sum += candidate.p;
    for (Candidate& candidate : distribution) candidate.p = static_cast<float>(candidate.p / sum);
}

// Keeps what typical acceptance would accept. Never empty: exp(-H) <= max p.
void truncate_typical(std::vector<Candidate>& distribution, const AcceptParams& params) {
    const float threshold = typical_threshold(distribution, params);
    const Candidate best = most_probable(distribution);
    std::erase_if(distribution, [&](const Candidate& c) { return c.p <= threshold && c.token != best.token; });
    renormalise(distribution);
}

// Keeps the likeliest tokens until they hold more than top_p, the one that crosses it included.
void truncate_nucleus(std::vector<Candidate>& distribution, float top_p) {
    if (top_p >= 1.0f) return;
    // A heap, since the nucleus is small: its likeliest are taken to the end of the array one by one.
    const auto less = [](const Candidate& a, const Candidate& b) {
        return a.p < b.p || (a.p == b.p && a.token > b.token);
    };
    std::make_heap(distribution.begin(), distribution.end(), less);
    auto end = distribution.end();
    for (double sum = 0.0; sum <= top_p && end != distribution.begin();) {
        std::pop_heap(distribution.begin(), end, less);
        sum += (--end)->p;
    }
    distribution.erase(distribution.begin(), end);
    std::sort(distribution.begin(), distribution.end(),
              [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    renormalise(distribution);
}

// softmax(logits / temperature), or the argmax.
void model_distribution(std::span<const float> logits, const SamplingParams& sampling, std::vector<Candidate>& out) {
    out.clear();
    const Token best = argmax(logits);
    if (sampling.is_greedy()) {
        out.push_back({best, 1.0f});
        return;
    }
    for (size_t i = 0; i < logits.size(); ++i) {
        const float p = std::exp((logits[i] - logits[best]) / sampling.temperature);
        if (p > 0.0f) out.push_back({static_cast<Token>(i), p});
    }
    renormalise(out);
}

std::vector<int> path_to(const Tree& tree, int node) {
    std::vector<int> path;
    for (int up = node; up >= 0; up = tree.parent(up)) path.push_back(up);
    std::reverse(path.begin(), path.end());
    return path;
}

// Moves the chain past the path and a new root that is drawn at its end.
Accepted finish(const AcceptContext& context, std::vector<int> path, std::vector<Candidate>& distribution) {
    Accepted accepted{std::move(path), 0};
    const uint64_t drawn = context.emitted + accepted.path.size() - 1;
    accepted.next_root = pick_from(distribution, context.params, context.sampling, drawn);
    for (size_t i = 1; i < accepted.path.size(); ++i) context.chain.accept(context.draft.tokens[accepted.path[i]]);
    context.chain.accept(accepted.next_root);
    return accepted;
}

// One node whose path has been accepted so far.
struct Reached {
    int node;
    double log_likelihood;
    std::unique_ptr<Chain> chain;  // past the node's token
    std::vector<Candidate> distribution;
};

}  // namespace

void distribution_of(Target& target, int row, Chain& chain, const AcceptParams& params, const SamplingParams& sampling,
                     std::vector<Candidate>& out) {
    const bool alone = params.kind == AcceptKind::nucleus || (params.kind == AcceptKind::typical && params.model_alone);
    GraphSteps* graph = alone ? nullptr : target.in_graph();
    const auto ranked = graph ? graph->ranked(row) : std::span<const RankedToken>();
    if (alone) {
        model_distribution(target.logits(row), sampling, out);
    } else if (!ranked.empty()) {
        chain.apply(ranked, out);
    } else {
        chain.apply(target.logits(row), out);
    }
}

Token pick_from(std::vector<Candidate>& distribution, const AcceptParams& params, const SamplingParams& sampling,
                uint64_t emitted) {
    const bool truncates = params.kind == AcceptKind::typical || params.kind == AcceptKind::nucleus;
    const bool draws = truncates || params.kind == AcceptKind::exact || params.kind == AcceptKind::rejection;
    if (!draws || (truncates && params.greedy_root)) {
        return most_probable(distribution).token;
    }
    if (params.kind == AcceptKind::typical) truncate_typical(distribution, params);
    if (params.kind == AcceptKind::nucleus) truncate_nucleus(distribution, sampling.top_p);
    return draw(distribution, uniform(sampling.seed, emitted));
}

Accepted accept_typical(const AcceptContext& context) {
    const Draft& draft = context.draft;
    const Tree& tree = *draft.tree;
    std::vector<Reached> reached;
    reached.push_back({0, 0.0, context.chain.clone(), {}});
    size_t best = 0;
    for (size_t i = 0; i < reached.size(); ++i) {
        const int node = reached[i].node;
        distribution_of(context.target, node, *reached[i].chain, context.params, context.sampling,
                        reached[i].distribution);
        const Reached& here = reached[i];
        const int depth = tree.depth_of(node), best_depth = tree.depth_of(reached[best].node);
        if (depth > best_depth || (depth == best_depth && here.log_likelihood > reached[best].log_likelihood)) best = i;
        const float threshold = typical_threshold(here.distribution, context.params);
        std::vector<Reached> next;
        for (const int child : tree.children(node)) {
            const auto candidate =
                std::lower_bound(here.distribution.begin(), here.distribution.end(), draft.tokens[child],
                                 [](const Candidate& c, Token token) { return c.token < token; });
            if (candidate == here.distribution.end() || candidate->token != draft.tokens[child]) continue;
            if (candidate->p <= threshold) continue;
            auto advanced = here.chain->clone();
            advanced->accept(draft.tokens[child]);
            next.push_back({child, here.log_likelihood + std::log(candidate->p), std::move(advanced), {}});
        }
        for (Reached& child : next) reached.push_back(std::move(child));
    }
    return finish(context, path_to(tree, reached[best].node), reached[best].distribution);
}

Accepted accept_nucleus(const AcceptContext& context) {
    const Draft& draft = context.draft;
    const Tree& tree = *draft.tree;
    StepRandom random(context.sampling.seed, context.emitted, StepRandom::Purpose::acceptance);
    std::map<int, std::vector<Candidate>> nuclei;  // by node
    const auto nucleus = [&](int node) -> std::vector<Candidate>& {
        auto [at, added] = nuclei.try_emplace(node);
        if (added) {
            distribution_of(context.target, node, context.chain, context.params, context.sampling, at->second);
            truncate_nucleus(at->second, context.sampling.top_p);
        }
        return at->second;
    };
    int best = 0;
    for (int leaf = 0; leaf < tree.size(); ++leaf) {
        if (!tree.children(leaf).empty()) continue;
        const std::vector<int> path = path_to(tree, leaf);
        size_t at = 0;
        while (at + 1 < path.size() && draw(nucleus(path[at]), random.next()) == draft.tokens[path[at + 1]]) ++at;
        if (tree.depth_of(path[at]) > tree.depth_of(best)) best = path[at];
    }
    std::vector<Candidate> whole;
    distribution_of(context.target, best, context.chain, context.params, context.sampling, whole);
    return finish(context, path_to(tree, best), whole);
}

}  // namespace medusa
