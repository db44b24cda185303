#include "drafting/lookup.h"

#include <algorithm>

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

// Equal hashes are not yet equal tokens.
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

// A record fades to one half after about 14 later ones of its length; the prior weighs like two fresh ones.
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

}  // namespace medusa
