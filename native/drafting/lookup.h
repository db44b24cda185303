// Prompt lookup: text that was there before is likely to go on as it did then.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/common.h"

namespace medusa {

// The last `length` tokens also stand before tokens()[next]. length 0: no match.
struct LookupMatch {
    int length = 0;
    int next = 0;
};

// The longest suffix that occurred before, kept up to date token by token: one table entry per suffix length, no
// rescan.
class LookupIndex {
  public:
    // Matches of min_length..max_length tokens are found.
    LookupIndex(int min_length, int max_length);

    void append(Token token);
    void clear();
    std::span<const Token> tokens() const { return tokens_; }
    // The longest match; among equally long ones the most recent.
    LookupMatch match() const { return match_; }
    // What followed the match, `count` tokens; a match that reaches into itself goes on periodically.
    void continuation(int count, std::vector<Token>& out) const;

  private:
    bool same_suffix(int end, int length) const;

    int min_length_, max_length_;
    std::vector<Token> tokens_;
    std::unordered_map<uint64_t, int> ends_;  // hash of an n-gram and its length -> where it last ended
    LookupMatch match_;
};

// How often the token behind a match came, by the match's length: a moving average that starts from a prior.
class LookupAccuracy {
  public:
    LookupAccuracy(int min_length, int max_length);

    void record(int length, bool came);
    // Lengths above the largest are taken for it.
    float probability(int length) const;

  private:
    struct Counts {
        double came, tried;
    };
    size_t slot(int length) const;

    int min_length_;
    std::vector<Counts> counts_;
};

}  // namespace medusa
