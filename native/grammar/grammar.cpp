#include "grammar/grammar.h"

#include <algorithm>
#include <utility>

namespace medusa {

int32_t GrammarBuilder::add_rule(std::string name) {
    count(1);
    names_.push_back(std::move(name));
    defined_.push_back(false);
    rules_.emplace_back();
    return static_cast<int32_t>(rules_.size()) - 1;
}

int32_t GrammarBuilder::named(const std::string& name) {
    const auto [at, is_new] = by_name_.try_emplace(name, static_cast<int32_t>(rules_.size()));
    return is_new ? add_rule(name) : at->second;
}

int32_t GrammarBuilder::unnamed() {
    return add_rule("");
}

void GrammarBuilder::count(size_t symbols) {
    symbols_ += symbols;
    if (symbols_ > most_symbols) {
        throw GrammarError("the grammar is too large: more than " + std::to_string(most_symbols) +
                           " symbols; repeat fewer things, or allow more of them");
    }
}

void GrammarBuilder::define(int32_t rule, std::vector<Sequence> alternatives) {
    for (const Sequence& one : alternatives) count(one.size() + 1);
    rules_[static_cast<size_t>(rule)] = std::move(alternatives);
    defined_[static_cast<size_t>(rule)] = true;
}

int32_t GrammarBuilder::set(const ByteSet& bytes) {
    const auto [at, is_new] = set_ids_.try_emplace(bytes.to_string(), -2 - static_cast<int32_t>(sets_.size()));
    if (is_new) sets_.push_back(bytes);
    return at->second;
}

namespace {

using Range = std::pair<uint32_t, uint32_t>;
using ByteRanges = std::vector<std::pair<uint8_t, uint8_t>>;

std::string encoded(uint32_t c) {
    const auto byte = [](uint32_t value) { return static_cast<char>(value); };
    const auto tail = [&](int shift) { return byte(0x80 | ((c >> shift) & 0x3F)); };
    if (c < 0x80) return {byte(c)};
    if (c < 0x800) return {byte(0xC0 | (c >> 6)), tail(0)};
    if (c < 0x10000) return {byte(0xE0 | (c >> 12)), tail(6), tail(0)};
    return {byte(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

// A range of characters of one encoded length, as products of byte ranges.
void split(uint32_t from, uint32_t to, std::vector<ByteRanges>& out) {
    // Where the last `shift` bits do not cover all continuations, the range is cut so that they do.
    for (int shift = 6; shift <= 18; shift += 6) {
        const uint32_t mask = (1u << shift) - 1;
        if ((from & ~mask) == (to & ~mask)) break;
        if ((from & mask) != 0) {
            split(from, from | mask, out);
            split((from | mask) + 1, to, out);
            return;
        }
        if ((to & mask) != mask) {
            split(from, (to & ~mask) - 1, out);
            split(to & ~mask, to, out);
            return;
        }
    }
    const std::string low = encoded(from), high = encoded(to);
    ByteRanges bytes;
    for (size_t i = 0; i < low.size(); ++i) {
        bytes.emplace_back(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i]));
    }
    out.push_back(std::move(bytes));
}

constexpr Range lengths[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};

ByteSet between(uint8_t from, uint8_t to) {
    ByteSet out;
    for (size_t byte = from; byte <= to; ++byte) out.set(byte);
    return out;
}

}  // namespace

int32_t GrammarBuilder::characters(std::vector<Range> ranges) {
    std::sort(ranges.begin(), ranges.end());
    const auto known = character_ids_.find(ranges);
    if (known != character_ids_.end()) return known->second;
    ByteSet single;
    std::vector<Sequence> alternatives;
    for (const auto& [from, to] : ranges) {
        for (const auto& [low, high] : lengths) {
            const uint32_t begin = std::max(from, low), last = std::min(to, high);
            if (begin > last) continue;
            if (last < 0x80) {
                single |= between(static_cast<uint8_t>(begin), static_cast<uint8_t>(last));
                continue;
            }
            std::vector<ByteRanges> products;
            split(begin, last, products);
            for (const ByteRanges& product : products) {
                Sequence sequence;
                for (const auto& [a, b] : product) sequence.push_back(set(between(a, b)));
                alternatives.push_back(std::move(sequence));
            }
        }
    }
    int32_t symbol = 0;
    if (alternatives.empty()) {
        symbol = set(single);
    } else {
        if (single.any()) alternatives.push_back({set(single)});
        symbol = unnamed();
        define(symbol, std::move(alternatives));
    }
    character_ids_.emplace(std::move(ranges), symbol);
    return symbol;
}

GrammarBuilder::Sequence GrammarBuilder::repeated(int32_t symbol, int least, int most) {
    count(static_cast<size_t>(least));
    Sequence out(static_cast<size_t>(least), symbol);
    if (most < 0) {
        const int32_t more = unnamed();
        define(more, {{symbol, more}, {}});
        out.push_back(more);
        return out;
    }
    int32_t rest = -1;
    for (int n = least; n < most; ++n) {
        const int32_t one = unnamed();
        define(one, {rest < 0 ? Sequence{symbol} : Sequence{symbol, rest}, {}});
        rest = one;
    }
    if (rest >= 0) out.push_back(rest);
    return out;
}

std::string GrammarBuilder::shown(int32_t rule) const {
    const std::string& name = names_[static_cast<size_t>(rule)];
    return name.empty() ? "a part of a rule" : "rule " + name;
}

// [rule]: some text matches it.
std::vector<bool> GrammarBuilder::productive() const {
    std::vector<bool> found(rules_.size(), false);
    // Each alternative waits for the rules in it; a rule that turns out productive is told to those that wait for it.
    std::vector<std::vector<std::pair<int32_t, size_t>>> waiting(rules_.size());
    std::vector<std::vector<int>> left(rules_.size());
    std::vector<int32_t> ready;
    const auto finish = [&](int32_t rule) {
        if (found[static_cast<size_t>(rule)]) return;
        found[static_cast<size_t>(rule)] = true;
        ready.push_back(rule);
    };
    for (size_t rule = 0; rule < rules_.size(); ++rule) {
        for (size_t i = 0; i < rules_[rule].size(); ++i) {
            int missing = 0;
            bool dead = false;
            for (const int32_t symbol : rules_[rule][i]) {
                if (symbol >= 0) {
                    waiting[static_cast<size_t>(symbol)].emplace_back(static_cast<int32_t>(rule), i);
                    ++missing;
                } else if (sets_[static_cast<size_t>(-2 - symbol)].none()) {
                    dead = true;
                }
            }
            left[rule].push_back(dead ? -1 : missing);
            if (!dead && missing == 0) finish(static_cast<int32_t>(rule));
        }
    }
    while (!ready.empty()) {
        const int32_t rule = ready.back();
        ready.pop_back();
        for (const auto& [user, alternative] : waiting[static_cast<size_t>(rule)]) {
            int& missing = left[static_cast<size_t>(user)][alternative];
            if (missing > 0 && --missing == 0) finish(user);
        }
    }
    return found;
}

Grammar GrammarBuilder::build(const std::string& root) {
    if (!by_name_.contains(root)) throw GrammarError("the grammar has no rule named " + root + ": add one");
    for (size_t rule = 0; rule < rules_.size(); ++rule) {
        if (!defined_[rule]) throw GrammarError("the grammar uses rule " + names_[rule] + ", which it does not define");
    }
    Grammar out;
    out.root_ = by_name_.at(root);
    const std::vector<bool> usable = productive();
    if (!usable[static_cast<size_t>(out.root_)]) {
        throw GrammarError("no text matches the grammar: what its rules ask for has no end, or contradicts itself");
    }
    out.code_.push_back(Grammar::end);
    for (const auto& alternatives : rules_) {
        std::vector<int32_t> starts;
        for (const Sequence& one : alternatives) {
            const bool matches = std::all_of(one.begin(), one.end(), [&](int32_t symbol) {
                return symbol >= 0 ? usable[static_cast<size_t>(symbol)]
                                   : sets_[static_cast<size_t>(-2 - symbol)].any();
            });
            if (!matches) continue;
            starts.push_back(static_cast<int32_t>(out.code_.size()));
            out.code_.insert(out.code_.end(), one.begin(), one.end());
            out.code_.push_back(Grammar::end);
        }
        out.starts_.push_back(std::move(starts));
    }
    out.sets_ = sets_;
    find_nullable(out);
    sort_rules(out);
    find_classes(out);
    return out;
}

void GrammarBuilder::find_nullable(Grammar& out) const {
    out.nullable_.assign(out.starts_.size(), false);
    // By the rules that occur in them, so that each alternative is looked at a few times only.
    std::vector<std::vector<int32_t>> users(out.starts_.size());
    std::vector<int32_t> ready;
    const auto is_empty = [&](int32_t at) {
        while (out.symbol(at) >= 0 && out.nullable(out.symbol(at))) ++at;
        return out.symbol(at) == Grammar::end;
    };
    const auto look = [&](int32_t rule) {
        if (out.nullable(rule)) return;
        const auto& alternatives = out.alternatives(rule);
        if (std::none_of(alternatives.begin(), alternatives.end(), is_empty)) return;
        out.nullable_[static_cast<size_t>(rule)] = true;
        ready.push_back(rule);
    };
    for (size_t rule = 0; rule < out.starts_.size(); ++rule) {
        for (int32_t at : out.starts_[rule]) {
            for (; out.symbol(at) >= 0; ++at) {
                auto& of = users[static_cast<size_t>(out.symbol(at))];
                if (of.empty() || of.back() != static_cast<int32_t>(rule)) of.push_back(static_cast<int32_t>(rule));
            }
        }
        look(static_cast<int32_t>(rule));
    }
    while (!ready.empty()) {
        const int32_t rule = ready.back();
        ready.pop_back();
        for (const int32_t user : users[static_cast<size_t>(rule)]) look(user);
    }
}

// [rule]: the rules that it can begin with. Left out: a rule that ends in itself after nothing (repetitions of what may
// be empty), which adds nothing to it.
std::vector<std::vector<int32_t>> GrammarBuilder::left_corners(const Grammar& out) const {
    std::vector<std::vector<int32_t>> first(out.starts_.size());
    for (size_t rule = 0; rule < out.starts_.size(); ++rule) {
        for (int32_t at : out.starts_[rule]) {
            for (; out.symbol(at) >= 0; ++at) {
                const int32_t called = out.symbol(at);
                const bool repeats = called == static_cast<int32_t>(rule) && out.symbol(at + 1) == Grammar::end;
                if (!repeats) first[rule].push_back(called);
                if (!out.nullable(called)) break;
            }
        }
    }
    return first;
}

void GrammarBuilder::sort_rules(Grammar& out) const {
    const auto first = left_corners(out);
    enum State : char { untouched, open, done };
    std::vector<State> state(first.size(), untouched);
    std::vector<std::pair<int32_t, size_t>> stack;  // a rule, and how many of its first ones have been visited
    for (size_t start = 0; start < first.size(); ++start) {
        if (state[start] != untouched) continue;
        stack.emplace_back(static_cast<int32_t>(start), 0);
        state[start] = open;
        while (!stack.empty()) {
            auto& [rule, visited] = stack.back();
            const auto& next = first[static_cast<size_t>(rule)];
            if (visited == next.size()) {
                state[static_cast<size_t>(rule)] = done;
                out.by_order_.push_back(rule);
                stack.pop_back();
                continue;
            }
            const int32_t called = next[visited++];
            if (state[static_cast<size_t>(called)] == open) {
                throw GrammarError(shown(called) +
                                   " of the grammar begins with itself (left recursion): write it as a "
                                   "repetition, such as term (\"+\" term)*");
            }
            if (state[static_cast<size_t>(called)] == done) continue;
            state[static_cast<size_t>(called)] = open;
            stack.emplace_back(called, 0);
        }
    }
    std::reverse(out.by_order_.begin(), out.by_order_.end());
    out.order_.resize(first.size());
    for (size_t i = 0; i < out.by_order_.size(); ++i) {
        out.order_[static_cast<size_t>(out.by_order_[i])] = static_cast<int32_t>(i);
    }
}

void GrammarBuilder::find_classes(Grammar& out) const {
    std::array<int, 256> classes{};
    int count_of = 1;
    for (const ByteSet& set : out.sets_) {
        std::map<std::pair<int, bool>, int> split;
        for (size_t byte = 0; byte < 256; ++byte) {
            const auto key = std::pair(classes[byte], set[byte]);
            classes[byte] = split.try_emplace(key, static_cast<int>(split.size())).first->second;
        }
        count_of = static_cast<int>(split.size());
    }
    out.bytes_.resize(static_cast<size_t>(count_of));
    std::vector<int> members(static_cast<size_t>(count_of), 0);
    for (size_t byte = 0; byte < 256; ++byte) {
        out.class_of_[byte] = static_cast<uint8_t>(classes[byte]);
        out.bytes_[static_cast<size_t>(classes[byte])] = static_cast<uint8_t>(byte);
        ++members[static_cast<size_t>(classes[byte])];
    }
    for (const int n : members) out.single_.push_back(n == 1);
}

}  // namespace medusa
