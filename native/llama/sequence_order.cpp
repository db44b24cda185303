#include "llama/sequence_order.h"

#include <algorithm>
#include <unordered_set>

namespace medusa {
namespace {

int first_of(const std::vector<int>& inserted) {
    std::unordered_set<int> set;
    for (const int sequence : inserted) set.insert(sequence);
    return *set.begin();
}

// Buckets of a set of so many.
size_t buckets_of(size_t count) {
    std::unordered_set<int> set;
    for (int i = 0; i < static_cast<int>(count); ++i) set.insert(i);
    return set.bucket_count();
}

}  // namespace

// A set is a list in which a new entry comes first, but behind that which its bucket hangs on to: so those of the
// bucket go last, unless the list is turned around at the end, when the set grows.
std::vector<int> with_first(const std::vector<int>& sequences, int first) {
    std::vector<int> order;
    if (sequences.size() == 1) return sequences;
    const size_t buckets = buckets_of(sequences.size());
    const auto shares = [&](int sequence) {
        return static_cast<size_t>(sequence) % buckets == static_cast<size_t>(first) % buckets;
    };
    for (const int sequence : sequences) {
        if (sequence != first) order.push_back(sequence);
    }
    std::stable_partition(order.begin(), order.end(), [&](int sequence) { return !shares(sequence); });
    order.push_back(first);
    if (first_of(order) == first) return order;
    std::stable_partition(order.begin(), order.end() - 1, shares);
    if (first_of(order) == first) return order;
    std::rotate(order.begin(), order.end() - 1, order.end());
    return order;
}

}  // namespace medusa
