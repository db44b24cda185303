#include "decoding/accept.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace medusa {
namespace {

// Divides by the sum. false: nothing is left, so nothing changes.
bool normalise(std::vector<Candidate>& distribution) {
    double sum = 0.0;
    for (const Candidate& candidate : distribution) sum += candidate.p;
    if (!(sum > 0.0)) return false;
    for (Candidate& candidate : distribution) candidate.p = static_cast<float>(candidate.p / sum);
    return true;
}

void remove(std::vector<Candidate>& distribution, Token token) {
    std::erase_if(distribution, [&](const Candidate& candidate) { return candidate.token == token; });
    normalise(distribution);
}

// In token order; nullptr: no probability.
Candidate* find(std::vector<Candidate>& distribution, Token token) {
    const auto at = std::lower_bound(distribution.begin(), distribution.end(), token,
                                     [](const Candidate& c, Token wanted) { return c.token < wanted; });
    return at != distribution.end() && at->token == token ? &*at : nullptr;
}

// max(p - q, 0). Where rounding leaves nothing (q was p, so a rejection has no chance), p stays.
void subtract(std::vector<Candidate>& p, const Proposal& q) {
    std::vector<Candidate> left = p;
    for (const Candidate& candidate : q) {
        if (Candidate* at = find(left, candidate.token)) at->p = std::max(at->p - candidate.p, 0.0f);
    }
    std::erase_if(left, [](const Candidate& candidate) { return candidate.p <= 0.0f; });
    if (normalise(left)) p = std::move(left);
}

}  // namespace

void AcceptParams::check() const {
    if (!(epsilon > 0.0f && epsilon <= 1.0f)) throw Error("epsilon must be within (0, 1]");
    if (!(delta > 0.0f && delta <= 1.0f)) throw Error("delta must be within (0, 1]");
    if (!(synthetic_rate >= 0.0f && synthetic_rate <= 1.0f)) throw Error("synthetic_rate must be within [0, 1]");
}

int accept_child(const Draft& draft, int node, std::vector<Candidate>& p, const Passes& passes) {
    const auto& children = draft.tree->children(node);
    Proposal q;
    if (static_cast<size_t>(node) < draft.proposals.size()) q = draft.proposals[node];
    for (const int child : children) {
        if (draft.drawn[child]) continue;
        const Token token = draft.tokens[child];
        const Candidate* at = find(p, token);
        if (at && passes(at->p)) return child;
        if (at && p.size() > 1) remove(p, token);
        remove(q, token);
    }
    for (const int child : children) {
        if (!draft.drawn[child]) continue;
        const Token token = draft.tokens[child];
        const auto from = std::find_if(q.begin(), q.end(), [&](const Candidate& c) { return c.token == token; });
        const Candidate* at = find(p, token);
        if (at && passes(std::min(1.0, static_cast<double>(at->p) / from->p))) return child;
        subtract(p, q);
        remove(q, token);
    }
    return -1;
}

namespace {

// What a rule has to work with.
struct AcceptContext {
    Target& target;
    const Draft& draft;
    Chain& chain;  // past the root
    const AcceptParams& params;
    const SamplingParams& sampling;
    uint64_t emitted;
};

// --- typical acceptance and the nucleus rule draw from the tokens they accept

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

// Keeps what typical acceptance would accept. Never empty: exp(-H) <= max p.
void truncate_typical(std::vector<Candidate>& distribution, const AcceptParams& params) {
    const float threshold = typical_threshold(distribution, params);
    const Candidate best = most_probable(distribution);
    std::erase_if(distribution, [&](const Candidate& c) { return c.p <= threshold && c.token != best.token; });
    normalise(distribution);
}

// Keeps the likeliest tokens until they hold more than top_p, including the one that crosses it.
void truncate_nucleus(std::vector<Candidate>& distribution, float top_p) {
    if (top_p >= 1.0f) return;
    // A heap, since the nucleus is small: its likeliest tokens move to the end of the array one by one.
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
    normalise(distribution);
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
    normalise(out);
}

// What the rule takes for the model's distribution after `row`, in token order: the chain's output, or the model's own
// at the temperature alone.
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

// Draws from such a distribution by the rule; `emitted` is the number of the token.
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

// Moves the chain past the path and past a new root drawn at its end.
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
            const Candidate* candidate = find(reached[i].distribution, draft.tokens[child]);
            if (!candidate || candidate->p <= threshold) continue;
            auto advanced = here.chain->clone();
            advanced->accept(draft.tokens[child]);
            next.push_back({child, here.log_likelihood + std::log(candidate->p), std::move(advanced), {}});
        }
        for (Reached& child : next) reached.push_back(std::move(child));
    }
    return finish(context, tree.path(reached[best].node), reached[best].distribution);
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
        const std::vector<int> path = tree.path(leaf);
        size_t at = 0;
        while (at + 1 < path.size() && draw(nucleus(path[at]), random.next()) == draft.tokens[path[at + 1]]) ++at;
        if (tree.depth_of(path[at]) > tree.depth_of(best)) best = path[at];
    }
    std::vector<Candidate> whole;
    distribution_of(context.target, best, context.chain, context.params, context.sampling, whole);
    return finish(context, tree.path(best), whole);
}

// --- the other rules

Accepted accept_sampled(const AcceptContext& context) {
    Accepted accepted{{0}, 0};
    for (uint64_t emitted = context.emitted;; ++emitted) {
        const int node = accepted.path.back();
        const Token token = pick(context.target, node, context.chain, context.params, context.sampling, emitted);
        const auto& children = context.draft.tree->children(node);
        const auto match = std::find_if(children.begin(), children.end(),
                                        [&](int child) { return context.draft.tokens[child] == token; });
        if (match == children.end()) {
            accepted.next_root = token;
            return accepted;
        }
        accepted.path.push_back(*match);
    }
}

Accepted accept_rejection(const AcceptContext& context) {
    StepRandom random(context.sampling.seed, context.emitted, StepRandom::Purpose::acceptance);
    Accepted accepted{{0}, 0};
    const Passes passes = [&](double chance) { return random.next() < chance; };
    std::vector<Candidate> distribution;
    while (true) {
        const int node = accepted.path.back();
        distribution_of(context.target, node, context.chain, context.params, context.sampling, distribution);
        const int child = accept_child(context.draft, node, distribution, passes);
        const Token token = child < 0 ? draw(distribution, random.next()) : context.draft.tokens[child];
        context.chain.accept(token);
        if (child < 0) {
            accepted.next_root = token;
            return accepted;
        }
        accepted.path.push_back(child);
    }
}

// Samples each reached node as accept_sampled does, so that it takes the same time.
Accepted accept_synthetic(const AcceptContext& context) {
    Accepted accepted{{0}, 0};
    for (uint64_t emitted = context.emitted;; ++emitted) {
        const int node = accepted.path.back();
        const auto& children = context.draft.tree->children(node);
        accepted.next_root =
            pick(context.target, node, context.chain, context.params, context.sampling, context.emitted);
        const bool passes =
            !children.empty() && uniform(context.sampling.seed, emitted) < context.params.synthetic_rate;
        if (!passes) return accepted;
        accepted.path.push_back(children.front());
    }
}

}  // namespace

Token pick(Target& target, int row, Chain& chain, const AcceptParams& params, const SamplingParams& sampling,
           uint64_t emitted) {
    std::vector<Candidate> distribution;
    distribution_of(target, row, chain, params, sampling, distribution);
    const Token token = pick_from(distribution, params, sampling, emitted);
    chain.accept(token);
    return token;
}

Accepted accept_draft(Target& target, const Draft& draft, Chain& chain, const AcceptParams& params,
                      const SamplingParams& sampling, uint64_t emitted) {
    const AcceptContext context{target, draft, chain, params, sampling, emitted};
    switch (params.kind) {
        case AcceptKind::rejection:
            return accept_rejection(context);
        case AcceptKind::typical:
            return accept_typical(context);
        case AcceptKind::nucleus:
            return accept_nucleus(context);
        case AcceptKind::synthetic:
            return accept_synthetic(context);
        case AcceptKind::greedy:
        case AcceptKind::exact:
            break;
    }
    return accept_sampled(context);
}

}  // namespace medusa
