// Token bytes to printable text: whole UTF-8 characters, cut before a stop string.
#pragma once

#include <string>
#include <vector>

namespace medusa {

class TextStream {
  public:
    explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

    // Adds a token's bytes; returns what can be printed now. Bytes that may begin a stop string, or an incomplete
    // character, are held back. Once a stop string has matched, nothing more is returned.
    std::string push(const std::string& bytes);
    // The rest at the end of the text; a truncated character becomes U+FFFD.
    std::string finish();
    bool stopped() const { return stopped_; }

  private:
    size_t held_for_stops() const;

    std::vector<std::string> stops_;
    std::string buffer_;
    bool stopped_ = false;
};

// Removes the longest printable prefix of at most `limit` bytes from `buffer` and returns it as valid UTF-8: bytes that
// can never become a character are replaced by U+FFFD, an unfinished character at the end stays unless `final`.
std::string take_utf8(std::string& buffer, size_t limit, bool final);

}  // namespace medusa
