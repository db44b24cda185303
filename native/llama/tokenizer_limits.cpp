#include "llama/tokenizer_limits.h"

#include <algorithm>
#include <bitset>
#include <iterator>
#include <string>

#include "llama.h"

namespace medusa {
namespace {

// Tokenizers of type BPE split texts into words with std::regex, which in libstdc++ calls itself for every character of
// a match; what a match may hold differs by splitter, and for some it is the whole text. Measured with GCC 12: 331
// bytes. Debug and sanitizer builds take more.
constexpr size_t bytes_per_character = 1024;
constexpr size_t harmless = 256;  // characters: these need less than the smallest stack that threads have
constexpr size_t most_characters = 8'000'000;
// At each special token, libllama walks through the list of all before it: so many take a few seconds.
constexpr size_t most_special = 50'000;
// SentencePiece's: for each character that is no token, the tokens found so far are copied (std::vector::reserve). This
// many copies take some three seconds.
constexpr size_t most_copies = 40'000'000'000;

size_t characters_in(std::string_view text) {
    const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins));
}

// Bytes of the character that begins with this one, as libllama counts them.
size_t character_bytes(char first) {
    const auto byte = static_cast<unsigned char>(first);
    return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Bytes of white space at the beginning of `text`, 0: none. Unicode's, as libllama has it; as bytes, since compilers
// differ in how they write "\u3000".
size_t space_bytes(std::string_view text) {
    if (text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r')) return 1;
    if (text.starts_with("\xC2\x85") || text.starts_with("\xC2\xA0")) return 2;
    static constexpr std::string_view others[] = {
        "\xE1\x9A\x80", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80",
    };  // U+1680, U+2028, U+2029, U+202F, U+205F, U+3000
    const std::string_view three = text.substr(0, 3);
    const bool in_range = three >= "\xE2\x80\x80" && three <= "\xE2\x80\x8A";  // U+2000 to U+200A
    return in_range || std::find(std::begin(others), std::end(others), three) != std::end(others) ? 3 : 0;
}

size_t digit_bytes(std::string_view text) {
    return text[0] >= '0' && text[0] <= '9' ? 1 : 0;
}

// Splitters that look at all that is left of a stretch of one kind again and again. The most takes half a second, ten
// times as many a minute.
struct Stretch {
    std::string_view splitter;
    size_t (*bytes)(std::string_view);
    size_t most;
    const char* what;
};
constexpr Stretch stretches[] = {
    {"superbpe", digit_bytes, 4000, "digits"},
    {"jais-2", space_bytes, 100'000, "white space characters"},
};

void require_short(std::string_view text, const Stretch& stretch) {
    size_t now = 0, longest = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t bytes = stretch.bytes(text.substr(at));
        now = bytes > 0 ? now + 1 : 0;
        longest = std::max(longest, now);
        at += std::max<size_t>(bytes, 1);
    }
    if (longest <= stretch.most) return;
    throw Error("the text has " + std::to_string(longest) + " " + stretch.what + " in a row, the tokenizer takes " +
                std::to_string(stretch.most) + ": shorten them");
}

// RWKV's tokenizer looks for the longest token at each place. Where it finds none, though some begin with that byte, it
// starts over at the beginning of the text.
void require_tokens_of_one_byte(const llama_vocab* vocab, const std::string& path) {
    std::bitset<256> begins, alone;
    std::string text(256, '\0');
    for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        const auto read = [&] {
            return llama_token_to_piece(vocab, token, text.data(), static_cast<int32_t>(text.size()), 0, true);
        };
        int32_t length = read();
        if (length < 0) text.resize(-static_cast<int64_t>(length)), length = read();
        if (length < 1) continue;
        begins.set(static_cast<unsigned char>(text[0]));
        if (length == 1) alone.set(static_cast<unsigned char>(text[0]));
    }
    if ((begins & ~alone).none()) return;
    throw Error(path + ": the vocabulary has tokens of several bytes without one for their first byte, so that texts " +
                "cannot be split: the file is damaged, download it again");
}

}  // namespace

void SoughtTexts::sort() {
    std::sort(sorted_.begin(), sorted_.end());
}

// Of the longest that `text` begins with; 0: with none.
size_t SoughtTexts::bytes_at(std::string_view text) const {
    auto begin = sorted_.begin(), end = sorted_.end();
    size_t found = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        // Those that are no longer than the beginning they share come first.
        const auto byte = [i](std::string_view one) {
            return one.size() > i ? static_cast<int>(static_cast<unsigned char>(one[i])) : -1;
        };
        const int wanted = static_cast<unsigned char>(text[i]);
        begin = std::partition_point(begin, end, [&](std::string_view one) { return byte(one) < wanted; });
        end = std::partition_point(begin, end, [&](std::string_view one) { return byte(one) == wanted; });
        if (begin == end) break;
        if (begin->size() == i + 1) found = i + 1;
    }
    return found;
}

size_t SoughtTexts::count_in(std::string_view text, size_t most) const {
    size_t count = 0;
    for (size_t at = 0; at < text.size() && count < most;) {
        const size_t bytes = bytes_at(text.substr(at));
        count += bytes > 0 ? 1 : 0;
        at += std::max<size_t>(bytes, 1);
    }
    return count;
}

TokenizerLimits::TokenizerLimits(const llama_vocab* vocab, const GgufFile& file)
    : splitter_(file.get_string("tokenizer.ggml.pre").value_or("")) {
    const auto type = llama_vocab_type(vocab);
    kind_ = type == LLAMA_VOCAB_TYPE_BPE ? Kind::words : type == LLAMA_VOCAB_TYPE_SPM ? Kind::pieces : Kind::other;
    if (type == LLAMA_VOCAB_TYPE_RWKV) require_tokens_of_one_byte(vocab, file.path());
    for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        const std::string_view text = llama_vocab_get_text(vocab, token);
        if (text.empty()) continue;
        const auto kinds = llama_vocab_get_attr(vocab, token);
        if (kinds & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_UNKNOWN)) {
            special_.add(text);
            if (!(kinds & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN))) user_defined_.add(text);
        }
        if (kind_ == Kind::pieces && text.size() == character_bytes(text[0])) characters_.insert(text);
    }
    special_.sort();
    user_defined_.sort();
    if (characters_.contains("\xE2\x96\x81")) characters_.insert(" ");  // which it spells U+2581
}

size_t TokenizerLimits::stack_for(std::string_view text, bool parse_special) const {
    if (text.size() <= harmless) return 0;
    require_few_special(text, parse_special);
    if (kind_ == Kind::words) return stack_for_words(text);
    if (kind_ == Kind::pieces) require_few_unknown(text);
    return 0;
}

size_t TokenizerLimits::stack_for_words(std::string_view text) const {
    for (const Stretch& stretch : stretches) {
        if (stretch.splitter == splitter_) require_short(text, stretch);
    }
    const size_t characters = characters_in(text);
    if (characters > most_characters) {
        throw Error("the text has " + std::to_string(characters) + " characters, the tokenizer takes " +
                    std::to_string(most_characters) + " at a time: shorten it");
    }
    return characters * bytes_per_character;
}

void TokenizerLimits::require_few_special(std::string_view text, bool parse_special) const {
    if (text.size() <= most_special) return;
    if ((parse_special ? special_ : user_defined_).count_in(text, most_special + 1) <= most_special) return;
    throw Error("the text has more than " + std::to_string(most_special) + " special tokens, such as " +
                "those between the turns of a conversation, which would take too long: shorten it");
}

void TokenizerLimits::require_few_unknown(std::string_view text) const {
    size_t unknown = 0, tokens = 0;  // tokens: at most
    for (size_t at = 0, bytes; at < text.size(); at += bytes) {
        bytes = std::min(character_bytes(text[at]), text.size() - at);
        const bool known = characters_.contains(text.substr(at, bytes));
        unknown += known ? 0 : 1;
        tokens += known ? 1 : bytes;
    }
    if (unknown == 0 || tokens <= most_copies / unknown) return;
    throw Error("the text has " + std::to_string(unknown) +
                " characters that are not in the vocabulary, which would take too long: shorten it");
}

}  // namespace medusa
