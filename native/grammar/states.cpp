#include "grammar/states.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace medusa {
namespace {

constexpr size_t visits_at_first = 4'000'000;

}  // namespace

size_t GrammarStates::Hash::operator()(const Items& items) const {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const Item& item : items) {
        hash ^= (static_cast<uint64_t>(static_cast<uint32_t>(item.at)) << 32) | static_cast<uint32_t>(item.next);
        hash *= 0x100000001b3ull;
        hash ^= hash >> 29;
    }
    return static_cast<size_t>(hash);
}

GrammarStates::GrammarStates(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), classes_(static_cast<size_t>(grammar_->classes())), visits_left_(visits_at_first) {
    // Continuation 0 is the end of the text: the end that is no rule's, at position 0.
    continuation({{0, 0}});
    Items kernel;
    for (const int32_t start : grammar_->alternatives(grammar_->root())) kernel.push_back({start, 0});
    start_ = close(kernel);
}

int GrammarStates::after(int state, const std::string& bytes) {
    for (const char byte : bytes) {
        if (state == dead) break;
        state = after(state, static_cast<uint8_t>(byte));
    }
    return state;
}

int GrammarStates::advance(int state, int byte_class) {
    const uint8_t byte = grammar_->byte_of(byte_class);
    Items kernel;
    for (const Item& item : states_[static_cast<size_t>(state)].items) {
        if (grammar_->holds(grammar_->symbol(item.at), byte)) kernel.push_back({item.at + 1, item.next});
    }
    const int found = kernel.empty() ? dead : close(kernel);
    next_[static_cast<size_t>(state) * classes_ + static_cast<size_t>(byte_class)] = found;
    return found;
}

int GrammarStates::close(const Items& kernel) {
    pending_.clear(), found_.clear(), seen_.clear(), calls_.clear();
    accepts_ = false;
    for (const Item& item : kernel) visit(item);
    visit_pending();
    // Rules in their order: when one is read, all that wait for it here are known.
    while (!calls_.empty()) {
        const auto first = calls_.extract(calls_.begin());
        const int32_t rule = grammar_->rule_at(first.key());
        const int32_t next = continuation(std::move(first.mapped()));
        for (const int32_t start : grammar_->alternatives(rule)) {
            if (grammar_->symbol(start) != Grammar::end) visit({start, next});
        }
        visit_pending();
        // A repetition of what may be empty calls itself again, which adds nothing.
        calls_.erase(grammar_->order(rule));
    }
    return intern(std::move(found_), accepts_);
}

void GrammarStates::visit(Item item) {
    const uint64_t key =
        (static_cast<uint64_t>(static_cast<uint32_t>(item.at)) << 32) | static_cast<uint32_t>(item.next);
    if (!seen_.try_emplace(key).second) return;
    if (visits_left_ == 0) throw GrammarLimit();
    --visits_left_;
    pending_.push_back(item);
}

void GrammarStates::visit_pending() {
    while (!pending_.empty()) {
        const Item item = pending_.back();
        pending_.pop_back();
        const int32_t symbol = grammar_->symbol(item.at);
        if (Grammar::is_set(symbol)) {
            found_.push_back(item);
        } else if (symbol >= 0) {
            call(item, symbol);
        } else if (item.next == 0) {
            accepts_ = true;
        } else {
            for (const Item& one : continuations_[static_cast<size_t>(item.next)]) visit(one);
        }
    }
}

void GrammarStates::call(const Item& item, int32_t rule) {
    Items& waiting = calls_[grammar_->order(rule)];
    if (grammar_->symbol(item.at + 1) == Grammar::end) {
        const Items& after_all = continuations_[static_cast<size_t>(item.next)];
        if (visits_left_ < after_all.size()) throw GrammarLimit();
        visits_left_ -= after_all.size();
        waiting.insert(waiting.end(), after_all.begin(), after_all.end());
    } else {
        waiting.push_back({item.at + 1, item.next});
    }
    if (grammar_->nullable(rule)) visit({item.at + 1, item.next});
}

void GrammarStates::take(size_t bytes) {
    bytes_ += bytes;
    if (bytes_ > most_bytes) throw GrammarLimit();
}

int32_t GrammarStates::continuation(Items items) {
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
    const auto known = continuation_ids_.find(items);
    if (known != continuation_ids_.end()) return known->second;
    constexpr size_t overhead = 120;
    take(2 * items.size() * sizeof(Item) + overhead);
    const auto id = static_cast<int32_t>(continuations_.size());
    continuations_.push_back(items);
    continuation_ids_.emplace(std::move(items), id);
    return id;
}

int GrammarStates::intern(Items items, bool accepts) {
    std::sort(items.begin(), items.end());
    Items key = items;
    key.push_back({-1, accepts ? 1 : 0});
    const auto known = state_ids_.find(key);
    if (known != state_ids_.end()) return known->second;
    constexpr size_t overhead = 160;
    take(2 * items.size() * sizeof(Item) + classes_ * sizeof(int) + overhead);
    const int id = static_cast<int>(states_.size());
    states_.push_back({std::move(items), accepts});
    next_.resize(next_.size() + classes_, unknown);
    state_ids_.emplace(std::move(key), id);
    return id;
}

int GrammarStates::forced(int state) {
    if (accepts(state)) return -1;
    const Items& items = states_[static_cast<size_t>(state)].items;
    int only = -1;
    for (const Item& item : items) {
        for (int one = 0; one < grammar_->classes(); ++one) {
            if (!grammar_->holds(grammar_->symbol(item.at), grammar_->byte_of(one)) || one == only) continue;
            if (only >= 0 || !grammar_->is_single(one)) return -1;
            only = one;
        }
    }
    return only < 0 ? -1 : grammar_->byte_of(only);
}

}  // namespace medusa
