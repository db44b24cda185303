// A context-free grammar over bytes: what an answer may look like.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/common.h"

namespace medusa {

using ByteSet = std::bitset<256>;

// A grammar that cannot be used, or text that is none.
class GrammarError : public Error {
  public:
    using Error::Error;
};

// Immutable once built. Rules are alternatives of symbols: sets of bytes, or other rules. All alternatives lie one
// after the other in one array; a position in it says how far one of them has been read.
//
// Every rule matches something, and no rule begins with itself.
class Grammar {
  public:
    // Values of the array below zero. Others are rules.
    static constexpr int32_t end = -1;  // of an alternative
    static bool is_set(int32_t symbol) { return symbol < end; }

    int32_t symbol(int32_t at) const { return code_[static_cast<size_t>(at)]; }
    bool holds(int32_t set, uint8_t byte) const { return sets_[static_cast<size_t>(-2 - set)][byte]; }
    const std::vector<int32_t>& alternatives(int32_t rule) const { return starts_[static_cast<size_t>(rule)]; }
    bool nullable(int32_t rule) const { return nullable_[static_cast<size_t>(rule)]; }
    // A rule comes before all that it can begin with.
    int32_t order(int32_t rule) const { return order_[static_cast<size_t>(rule)]; }
    int32_t rule_at(int32_t order) const { return by_order_[static_cast<size_t>(order)]; }
    int32_t root() const { return root_; }

    // Bytes between which no set of the grammar tells a difference.
    int classes() const { return static_cast<int>(bytes_.size()); }
    int class_of(uint8_t byte) const { return class_of_[byte]; }
    // One of a class.
    uint8_t byte_of(int class_of_bytes) const { return bytes_[static_cast<size_t>(class_of_bytes)]; }
    // Whether it is the only one.
    bool is_single(int class_of_bytes) const { return single_[static_cast<size_t>(class_of_bytes)]; }

  private:
    friend class GrammarBuilder;

    std::vector<int32_t> code_;  // code_[0] is an end of its own
    std::vector<std::vector<int32_t>> starts_;
    std::vector<ByteSet> sets_;
    std::vector<bool> nullable_, single_;
    std::vector<int32_t> order_, by_order_;
    std::array<uint8_t, 256> class_of_{};
    std::vector<uint8_t> bytes_;
    int32_t root_ = 0;
};

// Puts a grammar together, rule by rule.
class GrammarBuilder {
  public:
    using Sequence = std::vector<int32_t>;  // symbols
    static constexpr size_t most_symbols = 400'000;

    // The rule of that name, which may be defined later.
    int32_t named(const std::string& name);
    int32_t unnamed();
    bool is_defined(int32_t rule) const { return defined_[static_cast<size_t>(rule)]; }
    void define(int32_t rule, std::vector<Sequence> alternatives);
    // Symbols of a set of bytes, and of characters in ranges of code points, as UTF-8.
    int32_t set(const ByteSet& bytes);
    int32_t characters(std::vector<std::pair<uint32_t, uint32_t>> ranges);
    // `symbol` from `least` to `most` times (most < 0: or more often).
    Sequence repeated(int32_t symbol, int least, int most);

    // Throws GrammarError: no such rule, a rule that is used and not defined, one that begins with itself, nothing that
    // the grammar matches, more than most_symbols.
    Grammar build(const std::string& root);

  private:
    void count(size_t symbols);
    int32_t add_rule(std::string name);
    std::vector<bool> productive() const;
    void find_nullable(Grammar& out) const;
    void sort_rules(Grammar& out) const;
    std::vector<std::vector<int32_t>> left_corners(const Grammar& out) const;
    void find_classes(Grammar& out) const;
    std::string shown(int32_t rule) const;

    std::map<std::string, int32_t> by_name_;
    std::vector<std::string> names_;
    std::vector<bool> defined_;
    std::vector<std::vector<Sequence>> rules_;
    std::vector<ByteSet> sets_;
    std::map<std::string, int32_t> set_ids_;
    std::map<std::vector<std::pair<uint32_t, uint32_t>>, int32_t> character_ids_;
    size_t symbols_ = 0;
};

}  // namespace medusa
