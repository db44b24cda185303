// Bytes as a file that has a path but lies in memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace medusa {

class MemoryFile {
  public:
    // zeros: how many of them follow.
    MemoryFile(const uint8_t* data, size_t size, size_t zeros = 0) : descriptor_(memfd_create("fuzzed", 0)) {
        if (descriptor_ < 0 || write(descriptor_, data, size) != static_cast<ssize_t>(size) ||
            ftruncate(descriptor_, static_cast<off_t>(size + zeros)) != 0) {
            std::abort();
        }
    }
    ~MemoryFile() { close(descriptor_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

  private:
    int descriptor_;
};

}  // namespace medusa
