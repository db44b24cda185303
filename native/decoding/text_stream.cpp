#include "decoding/text_stream.h"

#include <algorithm>

#include "base/utf8.h"

namespace medusa {

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
            out += replacement_character;
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
