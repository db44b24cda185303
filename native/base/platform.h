// Facts about the machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace medusa {

// Physical cores this process may run on (hyper-threads counted once); at least 1.
int physical_cores();
// Milliseconds that the processor has worked for all threads of this process.
double process_cpu_ms();
// Milliseconds that the cores which this process may run on have worked for all programs, but for those that give way
// to this one (nice); negative where the platform does not tell.
double allowed_cores_cpu_ms();
// Peak resident size of the process in bytes; 0 when the platform does not tell.
uint64_t peak_rss_bytes();
// Gives the resident pages of [data, data + size) back when they are proven to be a file's, mapped read-only: they can
// be read again. Otherwise, or where the platform does not tell, does nothing. Whether it did something.
bool release_file_pages(const void* data, size_t size);

}  // namespace medusa
