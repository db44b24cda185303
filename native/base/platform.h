// The machine and its system, where systems differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

namespace medusa {

// Physical cores this process may run on (hyper-threads counted once); at least 1.
int physical_cores();
// Milliseconds that the processor has worked for all threads of this process.
double process_cpu_ms();
// Milliseconds that the cores available to this process have worked for all programs, except those that yield to it
// (nice); negative where the platform does not tell.
double allowed_cores_cpu_ms();
// Peak resident size of the process in bytes; 0 when the platform does not tell.
uint64_t peak_rss_bytes();
// Gives back the resident pages of [data, data + size) if they are proven to be a file's, mapped read-only: they can be
// read again. Otherwise, or where the platform does not tell, does nothing. Returns whether it did something.
bool release_file_pages(const void* data, size_t size);

// Cores that other programs kept busy, on average since the last measurement, which is at least a fifth of a second
// old; the first began when the engine was started (begin_measuring_other_programs()). nullopt if the platform does not
// tell, or if it is too early. From any thread.
std::optional<double> cores_of_other_programs();
void begin_measuring_other_programs();

// A mapped file that is truncated while in use ends the process (SIGBUS): this prints a line that says so.
//
// From now on, that line goes to stderr before the signal has its usual effect. Does nothing if the program handles the
// signal itself, or on Windows.
void explain_bus_errors();

// For work that recurses deeper than a thread's usual stack allows.
//
// Runs `work` on a thread whose stack has at least that many bytes, and waits for it; only what is touched takes
// memory. Exceptions pass through. Throws OutOfMemory if the system provides no such thread. On Windows the thread is
// an ordinary one: there, recursion that is too deep raises an exception from std::regex.
void on_large_stack(size_t bytes, const std::function<void()>& work);

}  // namespace medusa
