#include "llama/tokenizer_stack.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/common.h"

namespace medusa {
namespace {

// Measured with GCC 12: 331 bytes. Debug and sanitizer builds take more.
constexpr size_t bytes_per_character = 1024;
// A match joins few stretches: a space, letters, an ending; or signs and the line ends behind them.
constexpr size_t stretches_per_match = 3;
constexpr size_t harmless = 256;  // characters: needs less than the smallest stack that threads have
constexpr size_t longest = 1'000'000;
constexpr size_t most_digits_of_superbpe = 4000;

enum Kind { letter, digit, space, sign, kind_count };

Kind kind_of(unsigned char byte) {
    if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') return letter;
    if (byte >= '0' && byte <= '9') return digit;
    if (byte == ' ' || (byte >= '\t' && byte <= '\r')) return space;
    return sign;
}

// For each kind, characters of the longest stretch that a class of a pattern could match. Those beyond ASCII may be of
// any class.
std::array<size_t, kind_count> longest_stretches(std::string_view text) {
    std::array<size_t, kind_count> now{}, most{};
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if ((byte & 0xC0) == 0x80) continue;  // not the first byte of its character
        for (int kind = 0; kind < kind_count; ++kind) {
            now[kind] = byte >= 0x80 || kind_of(byte) == kind ? now[kind] + 1 : 0;
            most[kind] = std::max(most[kind], now[kind]);
        }
    }
    return most;
}

size_t longest_number(std::string_view text) {
    size_t now = 0, most = 0;
    for (const char c : text) {
        now = kind_of(static_cast<unsigned char>(c)) == digit ? now + 1 : 0;
        most = std::max(most, now);
    }
    return most;
}

void check(size_t stretch, size_t most) {
    if (stretch <= most) return;
    throw Error("the text has " + std::to_string(stretch) +
                " letters, digits, spaces or signs in a row, the tokenizer takes " + std::to_string(most) +
                ": shorten them");
}

}  // namespace

size_t tokenizer_stack(std::string_view text, std::string_view pre) {
    if (text.size() <= harmless) return 0;
    const auto stretches = longest_stretches(text);
    // It looks at all digits behind each one: 4,000 take half a second, ten times as many a minute.
    if (pre == "superbpe") check(longest_number(text), most_digits_of_superbpe);
    const size_t stretch = *std::max_element(stretches.begin(), stretches.end());
    check(stretch, longest);
    return stretch <= harmless ? 0 : stretch * stretches_per_match * bytes_per_character;
}

}  // namespace medusa
