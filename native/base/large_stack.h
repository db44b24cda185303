// Work that calls itself deeper than a thread's usual stack allows.
#pragma once

#include <cstddef>
#include <functional>

namespace medusa {

// Runs `work` on a thread whose stack has at least that many bytes, and waits for it; only what is touched takes
// memory. Exceptions pass through. Throws OutOfMemory where the system gives no such thread. On Windows the thread is
// an ordinary one: recursion that is too deep is an exception of std::regex there.
void on_large_stack(size_t bytes, const std::function<void()>& work);

}  // namespace medusa
