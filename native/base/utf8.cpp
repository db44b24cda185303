#include "base/utf8.h"

namespace medusa {

Character character_at(std::string_view text, size_t at) {
    const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
    const unsigned char lead = byte(at);
    if (lead < 0x80) return {1, true, false};
    if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    for (size_t k = 1; k < length; ++k) {
        if (at + k >= text.size()) return {k, false, true};
        unsigned char low = 0x80, high = 0xBF;
        if (k == 1 && lead == 0xE0) low = 0xA0;
        if (k == 1 && lead == 0xED) high = 0x9F;
        if (k == 1 && lead == 0xF0) low = 0x90;
        if (k == 1 && lead == 0xF4) high = 0x8F;
        if (byte(at + k) < low || byte(at + k) > high) return {k, false, false};
    }
    return {length, true, false};
}

bool is_utf8(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const Character c = character_at(text, at);
        if (!c.valid) return false;
        at += c.length;
    }
    return true;
}

std::string one_line(std::string_view text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const Character c = character_at(text, at);
        const auto byte = static_cast<unsigned char>(text[at]);
        if (!c.valid) {
            out += replacement_character;
        } else if (byte < 0x20 || byte == 0x7F) {
            out += ' ';
        } else {
            out += text.substr(at, c.length);
        }
        at += c.length;
    }
    return out;
}

}  // namespace medusa
