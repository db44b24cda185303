// What a session knows of its text, as bytes, which are read back in the order they were written.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/common.h"

namespace medusa {

class StateWriter {
  public:
    // Counts the bytes without writing any.
    StateWriter() : counts_(true) {}
    // Throws Error where `out` is too small.
    explicit StateWriter(std::span<uint8_t> out) : out_(out), counts_(false) {}

    // The next `size` bytes, for the caller to fill; empty where they are only counted.
    std::span<uint8_t> room(size_t size) {
        const size_t at = size_;
        size_ += size;
        if (counts_) return {};
        if (size_ > out_.size()) throw Error("the state of a session became larger while it was written");
        return out_.subspan(at, size);
    }
    void bytes(const void* data, size_t size) {
        const std::span<uint8_t> out = room(size);
        if (!out.empty()) std::memcpy(out.data(), data, size);
    }
    template <typename Number>
    void number(Number value) {
        static_assert(std::is_arithmetic_v<Number>);
        bytes(&value, sizeof(value));
    }
    template <typename Element>
    void list(std::span<const Element> elements) {
        static_assert(std::is_trivially_copyable_v<Element>);
        number<uint64_t>(elements.size());
        bytes(elements.data(), elements.size_bytes());
    }
    size_t size() const { return size_; }

  private:
    std::span<uint8_t> out_;
    bool counts_;
    size_t size_ = 0;
};

// Throws Error where fewer bytes are left than requested.
class StateReader {
  public:
    explicit StateReader(std::span<const uint8_t> in) : in_(in) {}

    std::span<const uint8_t> bytes(uint64_t size) {
        if (size > in_.size()) throw Error("a saved state is too short");
        const auto found = in_.first(static_cast<size_t>(size));
        in_ = in_.subspan(found.size());
        return found;
    }
    template <typename Number>
    Number number() {
        static_assert(std::is_arithmetic_v<Number>);
        Number value;
        std::memcpy(&value, bytes(sizeof(value)).data(), sizeof(value));
        return value;
    }
    template <typename Element>
    std::vector<Element> list() {
        static_assert(std::is_trivially_copyable_v<Element>);
        const auto count = number<uint64_t>();
        if (count > in_.size() / sizeof(Element)) throw Error("a saved state is too short");
        std::vector<Element> elements(static_cast<size_t>(count));
        const auto found = bytes(count * sizeof(Element));
        if (!found.empty()) std::memcpy(elements.data(), found.data(), found.size());
        return elements;
    }

  private:
    std::span<const uint8_t> in_;
};

}  // namespace medusa
