#include "llama/tokenizer_stack.h"

#include <algorithm>
#include <string>

#include "base/common.h"

namespace medusa {
namespace {

// Measured with GCC 12: 331 bytes. Debug and sanitizer builds take more.
constexpr size_t bytes_per_character = 1024;
constexpr size_t harmless = 256;  // characters: needs less than the smallest stack that threads have
constexpr size_t most = 8'000'000;
constexpr size_t most_digits_of_superbpe = 4000;

size_t characters_in(std::string_view text) {
    const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins));
}

size_t longest_number(std::string_view text) {
    size_t now = 0, longest = 0;
    for (const char c : text) {
        now = c >= '0' && c <= '9' ? now + 1 : 0;
        longest = std::max(longest, now);
    }
    return longest;
}

}  // namespace

size_t tokenizer_stack(std::string_view text, std::string_view kind, std::string_view splitter) {
    if (text.size() <= harmless || kind != "gpt2") return 0;
    if (const size_t number = longest_number(text); splitter == "superbpe" && number > most_digits_of_superbpe) {
        // It looks at all digits behind each one: 4,000 take half a second, ten times as many a minute.
        throw Error("the text has " + std::to_string(number) + " digits in a row, the tokenizer takes " +
                    std::to_string(most_digits_of_superbpe) + ": shorten them");
    }
    const size_t characters = characters_in(text);
    if (characters > most) {
        throw Error("the text has " + std::to_string(characters) + " characters, the tokenizer takes " +
                    std::to_string(most) + " at a time: shorten it");
    }
    return characters * bytes_per_character;
}

}  // namespace medusa
