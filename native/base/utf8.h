// UTF-8 as RFC 3629 defines it: shortest form only, no surrogates, at most U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace medusa {

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";  // U+FFFD

struct Character {
    size_t length;  // bytes examined
    bool valid;
    bool unfinished;  // the text ended inside it
};

// Decodes the character that begins at text[at].
Character character_at(std::string_view text, size_t at);

bool is_utf8(std::string_view text);

// `text` as one line of valid UTF-8: bytes that form no character become U+FFFD, control characters become blanks.
std::string one_line(std::string_view text);

}  // namespace medusa
