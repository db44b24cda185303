#include "grammar/gbnf.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/utf8.h"

namespace medusa {
namespace {

using Sequence = GrammarBuilder::Sequence;
using Range = std::pair<uint32_t, uint32_t>;

constexpr uint32_t last_character = 0x10FFFF;
constexpr int deepest = 200;  // parentheses in parentheses
constexpr size_t most_text = size_t{4} << 20;

class Parser {
  public:
    explicit Parser(std::string_view text) : text_(text) {}

    Grammar parse() {
        if (text_.size() > most_text) throw GrammarError("the grammar has more than 4 MB of text: write a smaller one");
        if (!is_utf8(text_)) throw GrammarError("the grammar is not UTF-8 text");
        skip(true);
        while (at_ < text_.size()) rule();
        return builder_.build("root");
    }

  private:
    [[noreturn]] void fail(const std::string& what) const {
        const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
        throw GrammarError("the grammar, line " + std::to_string(line) + ": " + what);
    }

    // What comes next, for messages.
    std::string next_shown() const {
        if (at_ >= text_.size()) return "the end";
        const size_t length = character_at(text_, at_).length;
        return text_[at_] == '\n' ? "the end of the line" : "\"" + std::string(text_.substr(at_, length)) + "\"";
    }

    bool at(char c) const { return at_ < text_.size() && text_[at_] == c; }

    bool take(std::string_view token) {
        if (text_.substr(at_, token.size()) != token) return false;
        at_ += token.size();
        return true;
    }

    void expect(std::string_view token) {
        if (!take(token)) fail("\"" + std::string(token) + "\" is missing before " + next_shown());
    }

    // White space and comments; line ends only where they mean nothing.
    void skip(bool lines) {
        while (at_ < text_.size()) {
            const char c = text_[at_];
            if (c == '#') {
                while (at_ < text_.size() && text_[at_] != '\n') ++at_;
            } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
                ++at_;
            } else {
                break;
            }
        }
    }

    static bool in_name(char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    }

    std::string name() {
        const size_t from = at_;
        while (at_ < text_.size() && in_name(text_[at_])) ++at_;
        if (at_ == from) fail("a name of a rule was expected, not " + next_shown());
        return std::string(text_.substr(from, at_ - from));
    }

    void rule() {
        const std::string called = name();
        const int32_t id = builder_.named(called);
        if (builder_.is_defined(id)) fail("rule " + called + " is defined twice");
        skip(false);
        expect("::=");
        skip(true);
        builder_.define(id, alternatives(0));
        if (at_ < text_.size() && !at('\n') && !at('\r')) fail(next_shown() + " was not expected");
        skip(true);
    }

    std::vector<Sequence> alternatives(int depth) {
        std::vector<Sequence> out{sequence(depth)};
        while (take("|")) {
            skip(true);
            out.push_back(sequence(depth));
        }
        return out;
    }

    Sequence sequence(int depth) {
        Sequence out;
        while (at_ < text_.size()) {
            const auto item = one(depth);
            if (!item) break;
            const Sequence repeated = repetition(*item, depth);
            out.insert(out.end(), repeated.begin(), repeated.end());
            skip(depth > 0);
        }
        return out;
    }

    // One element: a literal is as many symbols as it has bytes.
    std::optional<Sequence> one(int depth) {
        if (take("\"")) return literal();
        if (take("[")) return Sequence{char_class()};
        if (take(".")) return Sequence{builder_.characters({{0, last_character}})};
        if (take("(")) {
            if (depth >= deepest) fail("more than " + std::to_string(deepest) + " parentheses in each other");
            skip(true);
            auto inner = alternatives(depth + 1);
            expect(")");
            if (inner.size() == 1 && inner[0].size() == 1) return inner[0];
            const int32_t rule = builder_.unnamed();
            builder_.define(rule, std::move(inner));
            return Sequence{rule};
        }
        if (at('<') || at('!')) fail("tokens in grammars are not supported: write the text of the token");
        if (in_name(text_[at_])) return Sequence{builder_.named(name())};
        return std::nullopt;
    }

    Sequence repetition(const Sequence& item, int depth) {
        int least = 1, most = 1;
        if (take("*")) {
            least = 0, most = -1;
        } else if (take("+")) {
            most = -1;
        } else if (take("?")) {
            least = 0;
        } else if (take("{")) {
            counts(least, most);
        } else {
            return item;
        }
        if (at('*') || at('+') || at('?') || at('{'))
            fail("two repetitions in a row: put the first one in parentheses");
        int32_t symbol = item.size() == 1 ? item[0] : -1;
        if (item.size() != 1) {
            symbol = builder_.unnamed();
            builder_.define(symbol, {item});
        }
        return builder_.repeated(symbol, least, most);
    }

    void counts(int& least, int& most) {
        skip(false);
        least = number();
        most = least;
        skip(false);
        if (take(",")) {
            skip(false);
            most = at('}') ? -1 : number();
            skip(false);
        }
        expect("}");
        if (most >= 0 && most < least)
            fail("a repetition of at least " + std::to_string(least) + " and at most " + std::to_string(most) +
                 " is impossible");
    }

    int number() {
        int value = 0;
        const size_t from = at_;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
            value = 10 * value + (text_[at_] - '0');
            if (value > static_cast<int>(GrammarBuilder::most_symbols)) fail("that many repetitions are too many");
        }
        if (at_ == from) fail("a number was expected, not " + next_shown());
        return value;
    }

    // The next character of a literal or class, with escapes.
    uint32_t character() {
        if (at_ >= text_.size()) fail("a text or class does not end");
        if (!take("\\")) {
            const size_t length = character_at(text_, at_).length;
            const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text_[at_ + i])); };
            uint32_t value = length == 1 ? byte(0) : byte(0) & (0x7Fu >> length);
            for (size_t i = 1; i < length; ++i) value = value << 6 | (byte(i) & 0x3F);
            at_ += length;
            return value;
        }
        constexpr std::pair<char, char> plain[] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'\\', '\\'},
                                                   {'"', '"'},  {'[', '['},  {']', ']'},  {'-', '-'}};
        for (const auto& [name, value] : plain) {
            if (take({&name, 1})) return static_cast<uint8_t>(value);
        }
        constexpr std::pair<char, int> hex[] = {{'x', 2}, {'u', 4}, {'U', 8}};
        for (const auto& [name, digits] : hex) {
            if (take({&name, 1})) return code_point(digits);
        }
        fail("\\ before " + next_shown() + " means nothing");
    }

    uint32_t code_point(int digits) {
        uint32_t value = 0;
        for (int i = 0; i < digits; ++i, ++at_) {
            const char c = at_ < text_.size() ? text_[at_] : ' ';
            const uint32_t digit = c >= '0' && c <= '9'   ? static_cast<uint32_t>(c - '0')
                                   : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                                   : c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A' + 10)
                                                          : 16;
            if (digit == 16) fail("an escape needs " + std::to_string(digits) + " hexadecimal digits");
            value = value << 4 | digit;
        }
        if (value > last_character || (value >= 0xD800 && value <= 0xDFFF)) fail("an escape names no character");
        return value;
    }

    Sequence literal() {
        Sequence out;
        while (!take("\"")) {
            if (at('\n')) fail("a text does not end: \" is missing");
            const int32_t symbol = single(character());
            if (symbol < 0) {
                out.push_back(symbol);
            } else {
                const Sequence& bytes = wide_.at(symbol);
                out.insert(out.end(), bytes.begin(), bytes.end());
            }
        }
        return out;
    }

    // A character as a set of one byte, or as a rule of several, which wide_ spells out.
    int32_t single(uint32_t c) {
        if (c < 0x80) {
            ByteSet set;
            set.set(c);
            return builder_.set(set);
        }
        const int32_t rule = builder_.characters({{c, c}});
        if (!wide_.contains(rule)) {
            Sequence bytes;
            const int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
            for (int i = 0; i < length; ++i) {
                const uint32_t bits = c >> (6 * (length - 1 - i));
                ByteSet set;
                set.set(i > 0 ? 0x80 | (bits & 0x3F) : ((0xF00u >> length) & 0xFF) | bits);
                bytes.push_back(builder_.set(set));
            }
            wide_.emplace(rule, std::move(bytes));
        }
        return rule;
    }

    int32_t char_class() {
        const bool negated = take("^");
        std::vector<Range> ranges;
        while (!take("]")) {
            if (at('\n')) fail("a class does not end: ] is missing");
            const uint32_t from = character();
            uint32_t to = from;
            if (at('-') && text_.substr(at_, 2) != "-]") {
                ++at_;
                to = character();
            }
            if (to < from) fail("a range of characters ends before it begins");
            ranges.emplace_back(from, to);
        }
        std::sort(ranges.begin(), ranges.end());
        std::vector<Range> merged;
        for (const Range& one : ranges) {
            if (!merged.empty() && one.first <= merged.back().second + 1) {
                merged.back().second = std::max(merged.back().second, one.second);
            } else {
                merged.push_back(one);
            }
        }
        return builder_.characters(negated ? others(merged) : merged);
    }

    static std::vector<Range> others(const std::vector<Range>& ranges) {
        std::vector<Range> out;
        uint32_t from = 0;
        for (const auto& [low, high] : ranges) {
            if (low > from) out.emplace_back(from, low - 1);
            from = high + 1;
        }
        if (from <= last_character) out.emplace_back(from, last_character);
        return out;
    }

    std::string_view text_;
    size_t at_ = 0;
    GrammarBuilder builder_;
    std::map<int32_t, Sequence> wide_;  // the bytes of single characters, by their rules
};

}  // namespace

Grammar parse_gbnf(std::string_view text) {
    return Parser(text).parse();
}

}  // namespace medusa
