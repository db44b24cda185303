#include "drafting/lookup.h"

#include <algorithm>
#include <numeric>

namespace medusa {

LookupIndex::LookupIndex(int min_length, int max_length) : min_length_(min_length), max_length_(max_length) {
    if (min_length < 1 || max_length < min_length) {
        throw Error("lookup: match lengths " + std::to_string(min_length) + " to " + std::to_string(max_length) +
                    ": they start at 1 and ascend");
    }
}

void LookupIndex::clear() {
    tokens_.clear();
    ends_.clear();
    match_ = {};
}

void LookupIndex::append(Token token) {
    tokens_.push_back(token);
    match_ = {};
    const int end = static_cast<int>(tokens_.size());
    uint64_t hash = 0xcbf29ce484222325ull;
    for (int length = 1; length <= std::min(max_length_, end); ++length) {
        hash = (hash ^ (static_cast<uint64_t>(tokens_[end - length]) + 1)) * 0x100000001b3ull;
        hash ^= hash >> 29;
        if (length < min_length_) continue;
        const auto [entry, is_new] = ends_.try_emplace(hash + static_cast<uint64_t>(length), end);
        if (is_new) continue;
        if (same_suffix(entry->second, length)) match_ = {length, entry->second};
        entry->second = end;
    }
}

// Equal hashes need not mean equal tokens.
bool LookupIndex::same_suffix(int end, int length) const {
    return end >= length && std::equal(tokens_.begin() + end - length, tokens_.begin() + end, tokens_.end() - length);
}

void LookupIndex::continuation(int count, std::vector<Token>& out) const {
    out.clear();
    if (match_.length == 0) return;
    const int period = static_cast<int>(tokens_.size()) - match_.next;
    for (int i = 0; i < count; ++i) out.push_back(i < period ? tokens_[match_.next + i] : out[i - period]);
}

namespace {

// A record fades to one half after about 14 later ones of its length; the prior weighs as much as two fresh ones.
constexpr double keep = 0.95;
constexpr double prior_weight = 2.0;

}  // namespace

LookupAccuracy::LookupAccuracy(int min_length, int max_length) : min_length_(min_length) {
    // More cautious than the rule of succession, (n + 1) / (n + 2) after n equal tokens: suffixes recur by chance, too.
    for (int length = min_length; length <= max_length; ++length) {
        counts_.push_back({prior_weight * length / (length + 2), prior_weight});
    }
}

size_t LookupAccuracy::slot(int length) const {
    return std::min<size_t>(length - min_length_, counts_.size() - 1);
}

void LookupAccuracy::record(int length, bool came) {
    Counts& c = counts_[slot(length)];
    c.came = keep * c.came + (came ? 1.0 : 0.0);
    c.tried = keep * c.tried + 1.0;
}

float LookupAccuracy::probability(int length) const {
    const Counts& c = counts_[slot(length)];
    return static_cast<float>(c.came / c.tried);
}

namespace {

constexpr double keep_rate = 0.95;  // a step's weight falls to one half after 14 later ones

}  // namespace

LookupDrafter::LookupDrafter(std::unique_ptr<Drafter> inner, const LookupParams& params,
                             std::shared_ptr<const DraftCost> cost)
    : inner_(std::move(inner)),
      params_(params),
      index_(params.min_length, params.max_length),
      accuracy_(params.min_length, params.max_length),
      cost_(std::move(cost)) {
    std::vector<Choice> choices;
    chains_.emplace_back();
    for (int n = 1; n <= params_.max_nodes; ++n) {
        choices.push_back(Choice(n, 0));
        chains_.emplace_back(choices);
    }
}

TreeBounds LookupDrafter::bounds(const TreeBounds& inner, const LookupParams& params) {
    return {std::min(inner.leaves + 1, Tree::max_size), std::min(inner.nodes + params.max_nodes, Tree::max_size)};
}

void LookupDrafter::begin(std::span<const Token> prompt) {
    inner_only_ = false;
    if (inner_) inner_->begin(prompt);
    const auto known = index_.tokens();
    if (known.size() > prompt.size() || !std::equal(known.begin(), known.end(), prompt.begin())) index_.clear();
    for (const Token token : prompt.subspan(index_.tokens().size())) append(token, false);
}

// The newest step yielded this many tokens.
void LookupDrafter::learn_rate(size_t tokens) {
    if (!inner_only_) return;
    if (rate_threads_ != cost_->threads()) inner_tokens_ = inner_step_ms_ = 0;
    rate_threads_ = cost_->threads();
    inner_tokens_ = keep_rate * inner_tokens_ + static_cast<double>(tokens);
    inner_step_ms_ = keep_rate * inner_step_ms_ + cost_->newest_step_ms();
}

bool LookupDrafter::chain_beats_inner(int room) const {
    if (!cost_->learns() || inner_step_ms_ <= 0) return false;
    const Plan plan = plan_chain(1, room);
    return plan.length > 0 && plan.rate * inner_step_ms_ >= inner_tokens_ * cost_->root_ms();
}

void LookupDrafter::append(Token token, bool learn) {
    const LookupMatch match = index_.match();
    if (learn && match.length > 0) accuracy_.record(match.length, index_.tokens()[match.next] == token);
    index_.append(token);
}

// The number of nodes with the most expected tokens per cost. Each accepted node makes the match one token longer.
LookupDrafter::Plan LookupDrafter::plan_chain(int inner_size, int room) const {
    const int length = index_.match().length;
    if (length == 0) return {};
    const int most = std::min(params_.max_nodes, room - inner_size);
    double reached = 1.0, tokens = 1.0, node_cost = cost_->node_steps(), cost = 1.0 + node_cost * (inner_size - 1);
    Plan best{0, tokens / cost};
    for (int n = 1; n <= most; ++n) {
        reached *= accuracy_.probability(length + n - 1);
        tokens += reached;
        cost += node_cost;
        if (tokens / cost > best.rate) best = {n, tokens / cost};
    }
    return best;
}

void LookupDrafter::draft(const DraftInput& input, Draft& out) {
    const auto came = input.context.subspan(index_.tokens().size());
    learn_rate(came.size());
    for (const Token token : came) append(token, true);
    out.set_root(input.context.back());
    const int room = std::min(input.room, params_.total_nodes);
    // A single path has no other nodes.
    const auto planned = [&](int inner_size) { return plan_chain(params_.chains_only ? 1 : inner_size, room).length; };
    // Where tokens are drawn, the chain must not depend on them: it is planned for a tree as large as the newest one,
    // and where only one path is allowed, it replaces the inner drafter's.
    int length = 0;
    if (input.drawing) length = planned(std::max(inner_size_, inner_ ? input.shape.size() : 1));
    const bool alone = input.plain || chain_beats_inner(room);
    if (inner_ && inner_->joins_chain() && !input.drawing && !params_.chains_only && !alone) {
        draft_as_one(input, room, out);
        if (out.tree->size() > 1) return;
    } else if (inner_) {
        DraftInput asked = input;
        const bool instead = params_.chains_only && length > 0;
        asked.plain = alone || instead;
        asked.room = instead ? 1 : room - length;
        inner_->draft(asked, out);
    }
    inner_size_ = out.tree->size();
    inner_only_ = inner_size_ > 1;
    if (!input.drawing) length = planned(inner_size_);
    index_.continuation(length, chain_);
    if (!chain_.empty()) {
        params_.chains_only ? join_chain(out) : graft(out);
        inner_only_ = false;
    }
}

// The inner drafter weighs the chain's nodes along with its own.
void LookupDrafter::draft_as_one(const DraftInput& input, int room, Draft& out) {
    guesses_.clear();
    const int length = index_.match().length;
    index_.continuation(length > 0 ? params_.max_nodes : 0, chain_);
    for (size_t i = 0; i < chain_.size(); ++i) {
        guesses_.push_back({chain_[i], accuracy_.probability(length + static_cast<int>(i))});
    }
    DraftInput asked = input;
    asked.room = room;
    asked.chain = guesses_;
    inner_->draft(asked, out);
    inner_size_ = out.tree->size();
    inner_only_ = inner_size_ > 1 && chain_.empty();
}

// Makes one path of the two: as far as they agree, then whichever promises more tokens.
void LookupDrafter::join_chain(Draft& out) {
    const auto inner = static_cast<size_t>(out.tree->size()) - 1;
    size_t shared = 0;
    while (shared < std::min(inner, chain_.size()) && out.tokens[shared + 1] == chain_[shared]) ++shared;
    const auto probability = [&](size_t i) {
        return accuracy_.probability(index_.match().length + static_cast<int>(i));
    };
    double ours = 0, reached = 1;
    for (size_t i = shared; i < chain_.size(); ++i) ours += reached *= probability(i);
    double theirs = 0;
    reached = 1;
    for (size_t i = shared; i < inner; ++i) theirs += reached *= out.q[i + 1];
    if (theirs >= ours) return;
    out.tokens.resize(shared + 1);
    out.q.resize(shared + 1);
    out.drawn.assign(shared + 1, false);
    out.proposals.clear();
    for (size_t i = shared; i < chain_.size(); ++i) {
        out.tokens.push_back(chain_[i]);
        out.q.push_back(static_cast<float>(probability(i)));
        out.drawn.push_back(false);
    }
    out.tree = &chains_[chain_.size()];
}

// Follows the drafted nodes that carry the chain's tokens and hangs the rest of the chain below the last of them.
void LookupDrafter::graft(Draft& out) {
    const Tree& base = *out.tree;
    int node = 0;
    size_t shared = 0;
    for (; shared < chain_.size(); ++shared) {
        const auto& children = base.children(node);
        const auto same =
            std::find_if(children.begin(), children.end(), [&](int c) { return out.tokens[c] == chain_[shared]; });
        if (same == children.end()) break;
        node = *same;
        out.drawn[node] = false;  // it is here whatever was drawn
    }
    if (shared == chain_.size()) return;
    std::vector<Choice> choices = base.choices();
    Choice choice = node > 0 ? choices[node - 1] : Choice{};
    const auto& siblings = base.children(node);
    int rank =
        siblings.empty() ? 0 : 1 + base.rank(*std::max_element(siblings.begin(), siblings.end(), [&](int a, int b) {
            return base.rank(a) < base.rank(b);
        }));
    for (size_t i = shared; i < chain_.size(); ++i, rank = 0) {
        choice.push_back(rank);
        choices.push_back(choice);
        out.tokens.push_back(chain_[i]);
        out.q.push_back(accuracy_.probability(index_.match().length + static_cast<int>(i)));
        out.drawn.push_back(false);
    }
    if (base.size() == 1) {
        out.tree = &chains_[chain_.size()];
        return;
    }
    // A tree sorts its choices stably by depth: tokens and probabilities follow.
    std::vector<int> order(choices.size());
    std::iota(order.begin(), order.end(), 1);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return choices[a - 1].size() < choices[b - 1].size(); });
    const auto reorder = [&](auto& values) {
        auto sorted = values;
        for (size_t i = 0; i < order.size(); ++i) sorted[i + 1] = std::move(values[order[i]]);
        values = std::move(sorted);
    };
    reorder(out.tokens), reorder(out.q), reorder(out.drawn);
    if (!out.proposals.empty()) {
        out.proposals.resize(order.size() + 1);
        reorder(out.proposals);
    }
    joined_ = Tree(std::move(choices));
    out.tree = &joined_;
}

}  // namespace medusa
