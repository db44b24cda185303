// What every target has: one input, taken apart. Whatever it holds, the code under test may only throw Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/common.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace medusa {

// Ends the run, as a crash does.
inline void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
}

inline void expect_one_line(const Error& error) {
    const std::string_view text = error.what();
    expect(!text.empty() && text.find('\n') == text.npos && is_utf8(text), "an error is one line of UTF-8");
}

}  // namespace medusa
