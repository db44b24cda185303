// Facts about the machine.
#pragma once

#include <cstdint>

namespace medusa {

// Physical cores this process may run on (hyper-threads counted once); at least 1.
int physical_cores();
// Peak resident size of the process in bytes; 0 when the platform does not tell.
uint64_t peak_rss_bytes();

}  // namespace medusa
