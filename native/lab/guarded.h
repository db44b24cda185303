// Memory between guard bytes that nobody may touch. Under AddressSanitizer, nobody may read them either.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEDUSA_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define MEDUSA_ASAN 1
#endif
#ifdef MEDUSA_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace medusa::lab {

class Guarded {
  public:
    static constexpr uint8_t mark = 0x5A;

    explicit Guarded(size_t size)
        : size_(size), bytes_(static_cast<uint8_t*>(::operator new(size + 2 * guard, alignment))) {
        std::fill_n(bytes_, size + 2 * guard, mark);
        forbid();
    }
    ~Guarded() {
        allow();
        ::operator delete(bytes_, alignment);
    }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    uint8_t* data() { return bytes_ + guard; }
    size_t size() const { return size_; }
    void refill() { std::fill_n(data(), size_, mark); }

    bool intact() {
        allow();
        const auto marked = [](const uint8_t* begin) {
            return std::all_of(begin, begin + guard, [](uint8_t byte) { return byte == mark; });
        };
        const bool both = marked(bytes_) && marked(bytes_ + guard + size_);
        forbid();
        return both;
    }

  private:
    static constexpr size_t guard = 256;
    static constexpr std::align_val_t alignment{64};

    void forbid() {
#ifdef MEDUSA_ASAN
        __asan_poison_memory_region(bytes_, guard);
        __asan_poison_memory_region(bytes_ + guard + size_, guard);
#endif
    }
    void allow() {
#ifdef MEDUSA_ASAN
        __asan_unpoison_memory_region(bytes_, size_ + 2 * guard);
#endif
    }

    size_t size_;
    uint8_t* bytes_;
};

}  // namespace medusa::lab
