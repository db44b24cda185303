// Types that every native file shares.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/utf8.h"

namespace medusa {

using Token = int32_t;
inline constexpr Token no_token = -1;

// A failure that a person can act on. The text is one line of UTF-8, whatever a damaged file put into it: what, where,
// what to do.
class Error : public std::runtime_error {
  public:
    explicit Error(const std::string& text) : std::runtime_error(one_line(text)) {}
    // remedy: what to do, if that names options. Each is given by its field, "lower {ctx_size}": whoever reports the
    // error knows what a person calls it.
    Error(const std::string& text, const char* remedy) : std::runtime_error(one_line(text)), remedy_(remedy) {}

    const std::string& remedy() const { return remedy_; }

  private:
    std::string remedy_;
};

// A request does not fit into the memory of a device or of the machine: a smaller one may.
class OutOfMemory : public Error {
  public:
    using Error::Error;
};

// Milliseconds since construction or the last lap().
class Stopwatch {
  public:
    double elapsed_ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }
    double lap() {
        const auto now = Clock::now();
        const double ms = std::chrono::duration<double, std::milli>(now - start_).count();
        start_ = now;
        return ms;
    }

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point start_ = Clock::now();
};

}  // namespace medusa
