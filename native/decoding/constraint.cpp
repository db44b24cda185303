#include "decoding/constraint.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace medusa {

std::shared_ptr<const VocabularyTrie> Vocabulary::trie(int size) const {
    std::call_once(trie_built_, [&] {
        std::vector<std::string> texts;
        std::vector<bool> ends;
        for (Token token = 0; token < size; ++token) {
            texts.push_back(piece(token));
            ends.push_back(is_end_of_generation(token));
        }
        trie_ = std::make_shared<const VocabularyTrie>(std::move(texts), ends);
    });
    return trie_;
}

// --- the sampler chain

GrammarChain::GrammarChain(std::unique_ptr<Chain> inner, std::shared_ptr<TokenGrammar> grammar,
                           const SamplingParams& sampling)
    : inner_(std::move(inner)), grammar_(std::move(grammar)), sampling_(sampling), state_(grammar_->start()) {}

bool GrammarChain::begin(std::span<const Token> text) {
    for (const Token token : text) state_ = grammar_->after(state_, token);
    return state_ >= 0 && !grammar_->is_complete(state_);
}

void GrammarChain::accept(Token token) {
    state_ = grammar_->after(state_, token);
    inner_->accept(token);
}

std::unique_ptr<Chain> GrammarChain::clone() const {
    auto out = std::make_unique<GrammarChain>(inner_->clone(), grammar_, sampling_);
    out->state_ = state_;
    return out;
}

void GrammarChain::apply(std::span<const RankedToken>, std::vector<Candidate>&) {
    throw Error("a grammar needs whole rows of logits");
}

void GrammarChain::apply(std::span<const float> logits, std::vector<Candidate>& out) {
    if (state_ < 0 || grammar_->is_complete(state_)) {
        out.assign(1, {0, 1.0f});
        return;
    }
    if (!apply_likeliest(logits, out)) apply_masked(logits, out);
}

// Without a mask: enough of the likeliest tokens are allowed for those that count to be among them. Penalties and
// biases could change which ones these are.
bool GrammarChain::apply_likeliest(std::span<const float> logits, std::vector<Candidate>& out) {
    if (sampling_.changes_logits() || (!sampling_.is_greedy() && sampling_.top_k <= 0)) return false;
    const size_t count = sampling_.is_greedy() ? 1 : static_cast<size_t>(sampling_.top_k);
    constexpr size_t spare = 24;
    const Token best = argmax(logits);
    if (count == 1 && grammar_->allows(state_, best)) {
        out.assign(1, {best, 1.0f});
        return true;
    }
    top_indices(logits, static_cast<int>(count + spare), top_);
    ranked_.clear();
    for (const int token : top_) {
        if (ranked_.size() == count) break;
        if (grammar_->allows(state_, token)) ranked_.push_back({token, logits[static_cast<size_t>(token)]});
    }
    if (ranked_.size() < count) return false;
    inner_->apply(ranked_, out);
    return true;
}

void GrammarChain::apply_masked(std::span<const float> logits, std::vector<Candidate>& out) {
    const TokenSet& allowed = grammar_->allowed(state_);
    masked_.assign(logits.size(), -std::numeric_limits<float>::infinity());
    bool any = false;
    const auto& words = allowed.words();
    for (size_t word = 0; word < words.size(); ++word) {
        if (words[word] == 0) continue;
        any = true;
        for (size_t i = 64 * word; i < std::min(64 * word + 64, logits.size()); ++i) {
            if (allowed.contains(static_cast<Token>(i))) masked_[i] = logits[i];
        }
    }
    if (!any)
        throw Error("no token of the model continues the text as the grammar asks: the vocabulary lacks its bytes");
    inner_->apply(masked_, out);
}

// --- drafts

const GrammarDrafts::Split& GrammarDrafts::forced(TokenGrammar& grammar, int state, Token token) {
    constexpr size_t most_known = 20'000, longest = 200;
    if (known_.size() > most_known) known_.clear();
    const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32) | static_cast<uint32_t>(token);
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    Split found;
    if (state >= 0) {
        try {
            const TokenGrammar::Forced text = grammar.forced(state, longest);
            if (!text.text.empty()) found = split(grammar, text, token);
        } catch (const GrammarLimit&) {
        }
    }
    return known_.emplace(key, std::move(found)).first->second;
}

// The tokenizer's split of the token and the text, without the token. The last one may become one with what follows, or
// the model ends it earlier, where more than one token is likely.
GrammarDrafts::Split GrammarDrafts::split(TokenGrammar& grammar, const TokenGrammar::Forced& text, Token before) const {
    constexpr size_t most_ends = 2;
    const VocabularyTrie& vocabulary = grammar.vocabulary();
    Split out;
    out.chain = vocabulary_.split(vocabulary.text(before) + text.text);
    if (!out.chain.empty() && out.chain.front() == before) {
        out.chain.erase(out.chain.begin());
    } else {
        out.chain = vocabulary_.split(text.text);
    }
    if (out.chain.empty() || grammar.is_complete(text.state)) return out;
    out.ends.push_back(out.chain.back());
    out.chain.pop_back();
    const std::string last = vocabulary.text(out.ends.front());
    for (size_t length = last.size(); length-- > 1 && out.ends.size() < most_ends;) {
        const std::vector<Token> part = vocabulary_.split(last.substr(0, length));
        if (part.size() == 1 && vocabulary.text(part[0]).size() == length) out.ends.push_back(part[0]);
    }
    return out;
}

void GrammarDrafts::shape(TokenGrammar& grammar, int state, int room, Draft& draft) {
    // Which drawn drafts there are, and which beside them, must not depend on their tokens; and a drafter that hides
    // nodes wants to find its own tree again.
    if (std::find(draft.drawn.begin(), draft.drawn.end(), true) != draft.drawn.end() || draft.tree->hides()) return;
    const Token root = draft.tokens[0];
    try {
        prune(grammar, state, draft);
        extend(grammar, room, draft);
    } catch (const GrammarLimit&) {
        draft.set_root(root);
    }
}

bool GrammarDrafts::allows(TokenGrammar& grammar, int state, std::span<const Token> path, Token token) {
    try {
        for (const Token one : path) state = grammar.after(state, one);
        return grammar.allows(state, token);
    } catch (const GrammarLimit&) {
        return false;
    }
}

void GrammarDrafts::prune(TokenGrammar& grammar, int state, Draft& draft) {
    const Tree& tree = *draft.tree;
    const int size = tree.size();
    states_.assign(1, state);
    std::vector<int> place(static_cast<size_t>(size), -1), parents{-1};
    place[0] = 0;
    for (int node = 1; node < size; ++node) {
        const int parent = place[static_cast<size_t>(tree.parent(node))];
        if (parent < 0) continue;
        const int after = grammar.after(states_[static_cast<size_t>(parent)], draft.tokens[static_cast<size_t>(node)]);
        if (after == TokenGrammar::dead) continue;
        const auto to = static_cast<int>(parents.size());
        place[static_cast<size_t>(node)] = to;
        parents.push_back(parent);
        states_.push_back(after);
        const auto from = static_cast<size_t>(node), at = static_cast<size_t>(to);
        draft.tokens[at] = draft.tokens[from];
        draft.q[at] = draft.q[from];
    }
    const size_t left = parents.size();
    if (left == static_cast<size_t>(size)) return;
    draft.tokens.resize(left), draft.q.resize(left), draft.drawn.resize(left);
    draft.proposals.clear();
    tree_ = Tree::from_parents(parents);
    draft.tree = &tree_;
}

// Below the root, and at the end of the likeliest path.
void GrammarDrafts::extend(TokenGrammar& grammar, int room, Draft& draft) {
    int end = 0;
    double reached = 1.0;
    while (true) {
        const auto& children = draft.tree->children(end);
        if (children.empty()) break;
        end = *std::max_element(children.begin(), children.end(), [&](int a, int b) {
            return draft.q[static_cast<size_t>(a)] < draft.q[static_cast<size_t>(b)];
        });
        reached *= draft.q[static_cast<size_t>(end)];
    }
    constexpr double worth = 0.25;  // of the path
    const int root_state = states_[0];
    if (end != 0 && reached >= worth) {
        const auto at = static_cast<size_t>(end);
        add_split(end, forced(grammar, states_[at], draft.tokens[at]), room, draft);
    }
    add_split(0, forced(grammar, root_state, draft.tokens[0]), room, draft);
}

void GrammarDrafts::add_split(int node, const Split& split, int room, Draft& draft) {
    std::vector<Token> chain = split.chain;
    add(node, chain, room, draft);
    for (const Token token : split.ends) {
        chain.push_back(token);
        add(node, chain, room, draft);
        chain.pop_back();
    }
}

// The last node that carries the chain's tokens below a node, and how many do.
int GrammarDrafts::followed(const Draft& draft, int node, std::span<const Token> chain, size_t& shared) {
    for (shared = 0; shared < chain.size(); ++shared) {
        const auto& children = draft.tree->children(node);
        const auto same = std::find_if(children.begin(), children.end(), [&](int child) {
            return draft.tokens[static_cast<size_t>(child)] == chain[shared];
        });
        if (same == children.end()) break;
        node = *same;
    }
    return node;
}

// Hangs what is left of the chain below the last node that carries its tokens.
void GrammarDrafts::add(int node, std::span<const Token> chain, int room, Draft& draft) {
    constexpr float certain = 0.9f;
    const int from_node = node;
    size_t shared = 0;
    node = followed(draft, node, chain, shared);
    chain = chain.subspan(shared);
    if (chain.empty()) return;
    if (!draft.tree->children(node).empty() && draft.tree->leaf_count() >= most_.leaves) {
        // A single path is followed: that of the forced text.
        if (from_node != 0 || shared > 0) return;
        draft.set_root(draft.tokens[0]);
    }
    const auto left = static_cast<size_t>(std::max(std::min(room, most_.nodes) - draft.tree->size(), 0));
    chain = chain.first(std::min(chain.size(), left));
    if (chain.empty()) return;
    // Nodes come in the order of their depth.
    std::vector<int> parents = draft.tree->parents(), depths;
    for (int i = 0; i < draft.tree->size(); ++i) depths.push_back(draft.tree->depth_of(i));
    for (const Token token : chain) {
        const int added = static_cast<int>(parents.size());
        parents.push_back(node);
        depths.push_back(depths[static_cast<size_t>(node)] + 1);
        draft.tokens.push_back(token);
        draft.q.push_back(certain);
        node = added;
    }
    arrange(parents, depths, draft);
}

// Puts the nodes in the order of their depth, as trees have them.
void GrammarDrafts::arrange(const std::vector<int>& parents, const std::vector<int>& depths, Draft& draft) {
    std::vector<int> order(parents.size()), place(parents.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return depths[static_cast<size_t>(a)] < depths[static_cast<size_t>(b)]; });
    for (size_t i = 0; i < order.size(); ++i) place[static_cast<size_t>(order[i])] = static_cast<int>(i);
    std::vector<int> sorted;
    const Draft before = draft;
    for (size_t i = 0; i < order.size(); ++i) {
        const auto from = static_cast<size_t>(order[i]);
        sorted.push_back(parents[from] < 0 ? -1 : place[static_cast<size_t>(parents[from])]);
        draft.tokens[i] = before.tokens[from];
        draft.q[i] = before.q[from];
    }
    draft.drawn.assign(draft.tokens.size(), false);
    draft.proposals.clear();
    tree_ = Tree::from_parents(sorted);
    draft.tree = &tree_;
}

}  // namespace medusa
