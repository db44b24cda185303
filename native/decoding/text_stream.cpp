#include "decoding/text_stream.h"

#include <algorithm>
#include <string_view>

namespace medusa {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

struct Character {
    size_t length;  // bytes looked at
    bool valid;
    bool unfinished;  // the buffer ended inside it
};

// Decodes one character (RFC 3629: shortest form only, no surrogates, at most U+10FFFF).
Character character_at(const std::string& s, size_t i) {
    const auto byte = [&](size_t k) { return static_cast<unsigned char>(s[k]); };
    const unsigned char lead = byte(i);
    if (lead < 0x80) return {1, true, false};
    if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    for (size_t k = 1; k < length; ++k) {
        if (i + k >= s.size()) return {k, false, true};
        unsigned char low = 0x80, high = 0xBF;
        if (k == 1 && lead == 0xE0) low = 0xA0;
        if (k == 1 && lead == 0xED) high = 0x9F;
        if (k == 1 && lead == 0xF0) low = 0x90;
        if (k == 1 && lead == 0xF4) high = 0x8F;
        if (byte(i + k) < low || byte(i + k) > high) return {k, false, false};
    }
    return {length, true, false};
}

}  // namespace

std::string take_utf8(std::string& buffer, size_t limit, bool final) {
    std::string out;
    size_t i = 0;
    while (i < limit) {
        const Character c = character_at(buffer, i);
        if (c.unfinished && !final) break;
        if (c.valid) {
            if (i + c.length > limit) break;
            out.append(buffer, i, c.length);
        } else {
            out += replacement;
        }
        i += c.length;
    }
    buffer.erase(0, i);
    return out;
}

size_t TextStream::held_for_stops() const {
    size_t held = 0;
    for (const std::string& stop : stops_) {
        for (size_t n = std::min(stop.size(), buffer_.size()); n > held; --n) {
            if (buffer_.compare(buffer_.size() - n, n, stop, 0, n) == 0) held = n;
        }
    }
    return held;
}

std::string TextStream::push(const std::string& bytes) {
    if (stopped_) return "";
    buffer_ += bytes;
    size_t match = std::string::npos;
    for (const std::string& stop : stops_) {
        if (!stop.empty()) match = std::min(match, buffer_.find(stop));
    }
    if (match != std::string::npos) {
        stopped_ = true;
        buffer_.resize(match);
        return take_utf8(buffer_, match, true);
    }
    return take_utf8(buffer_, buffer_.size() - held_for_stops(), false);
}

std::string TextStream::finish() {
    if (stopped_) return "";
    return take_utf8(buffer_, buffer_.size(), true);
}

}  // namespace medusa
