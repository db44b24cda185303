// Which of a token's sequences libllama takes for its first, by which it tells whether a graph can be used again.
#pragma once

#include <vector>

namespace medusa {

// The same sequences in an order that makes `first`, one of them, the first in libllama's eyes: it puts them into a
// hash set, of this very standard library, and takes what comes first there. Where that fails a graph is made anew, and
// no more: any of a token's sequences gives the same result.
std::vector<int> with_first(const std::vector<int>& sequences, int first);

}  // namespace medusa
