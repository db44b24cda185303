#include "grammar/tokens.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace medusa {

VocabularyTrie::VocabularyTrie(std::vector<std::string> texts, const std::vector<bool>& ends)
    : texts_(std::move(texts)), ends_(ends) {
    constexpr size_t longest = 60'000;  // bytes of a token: deeper ones are left out of grammars
    for (size_t token = 0; token < texts_.size(); ++token) {
        if (ends_[token]) {
            ending_.push_back(static_cast<Token>(token));
        } else if (!texts_[token].empty() && texts_[token].size() < longest) {
            tokens_.push_back(static_cast<Token>(token));
        }
    }
    std::sort(tokens_.begin(), tokens_.end(), [&](Token a, Token b) {
        const int order = text(a).compare(text(b));
        return order < 0 || (order == 0 && a < b);
    });
    std::vector<int32_t> open;  // the nodes of the newest text
    const auto close = [&](size_t depth) {
        for (; open.size() > depth; open.pop_back()) {
            nodes_[static_cast<size_t>(open.back())].past = static_cast<int32_t>(nodes_.size());
        }
    };
    for (size_t i = 0; i < tokens_.size(); ++i) {
        const std::string& now = text(tokens_[i]);
        size_t shared = 0;
        while (shared < std::min(open.size(), now.size()) &&
               nodes_[static_cast<size_t>(open[shared])].byte == static_cast<uint8_t>(now[shared])) {
            ++shared;
        }
        close(shared);
        for (size_t at = shared; at < now.size(); ++at) {
            open.push_back(static_cast<int32_t>(nodes_.size()));
            nodes_.push_back({static_cast<uint8_t>(now[at]), static_cast<uint16_t>(at + 1), 0});
        }
        deepest_ = std::max(deepest_, static_cast<int>(now.size()));
        Node& last = nodes_[static_cast<size_t>(open.back())];
        if (last.count++ == 0) last.first = static_cast<int32_t>(i);
    }
    close(0);
}

TokenGrammar::TokenGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const VocabularyTrie> vocabulary)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      states_(grammar_),
      path_(static_cast<size_t>(vocabulary_->deepest()) + 1) {}

int TokenGrammar::after(int state, Token token) {
    if (state < 0) return dead;
    if (vocabulary_->ends(token)) return states_.accepts(state) ? ended : dead;
    const std::string& text = vocabulary_->text(token);
    if (text.empty()) return dead;
    states_.allow(visits_per_call);
    return states_.after(state, text);
}

const TokenSet& TokenGrammar::allowed(int state) {
    const auto known = masks_.find(state);
    if (known != masks_.end()) return known->second;
    TokenSet mask(vocabulary_->size());
    if (state >= 0) {
        build(state, mask);
        if (states_.accepts(state)) {
            for (const Token token : vocabulary_->ending()) mask.add(token);
        }
    }
    ++masks_built_;
    if ((masks_.size() + 1) * vocabulary_->size() / 8 > most_mask_bytes) masks_.clear();
    return masks_.emplace(state, std::move(mask)).first->second;
}

void TokenGrammar::build(int state, TokenSet& out) {
    states_.allow(visits_per_call);
    const auto& nodes = vocabulary_->nodes();
    const auto& tokens = vocabulary_->tokens();
    path_[0] = state;
    for (size_t i = 0; i < nodes.size();) {
        const VocabularyTrie::Node& node = nodes[i];
        const int next = states_.after(path_[node.depth - 1u], node.byte);
        if (next == GrammarStates::dead) {
            i = static_cast<size_t>(node.past);
            continue;
        }
        path_[node.depth] = next;
        for (int32_t at = node.first; at < node.first + node.count; ++at) out.add(tokens[static_cast<size_t>(at)]);
        ++i;
    }
}

TokenGrammar::Forced TokenGrammar::forced(int state, size_t most) {
    states_.allow(visits_per_call);
    Forced out{"", state};
    while (out.state >= 0 && out.text.size() < most) {
        const int byte = states_.forced(out.state);
        if (byte < 0) break;
        out.text += static_cast<char>(byte);
        out.state = states_.after(out.state, static_cast<uint8_t>(byte));
    }
    return out;
}

}  // namespace medusa
