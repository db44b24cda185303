// A grammar in GBNF up to the first zero byte, then a text that is read along with it.
#include <string>
#include <vector>

#include "fuzz/target.h"
#include "grammar/gbnf.h"
#include "grammar/tokens.h"

namespace medusa {
namespace {

std::shared_ptr<const VocabularyTrie> vocabulary() {
    static const auto built = [] {
        std::vector<std::string> texts;
        for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
        for (const char* text : {"", "{\"", "\":", "ab", "abc", "\xC3\xA9", "true", "</s>"}) texts.emplace_back(text);
        std::vector<bool> ends(texts.size(), false);
        ends.back() = true;
        return std::make_shared<const VocabularyTrie>(std::move(texts), ends);
    }();
    return built;
}

// The mask says the same as a question about each token.
void check_mask(TokenGrammar& grammar, int state) {
    const TokenSet allowed = grammar.allowed(state);
    for (Token token = 0; token < static_cast<Token>(vocabulary()->size()); ++token) {
        expect(allowed.contains(token) == grammar.allows(state, token), "a mask allows what may follow");
    }
}

void follow(TokenGrammar& grammar, std::string_view text) {
    int state = grammar.start();
    for (size_t at = 0; at < text.size() && at < 300; ++at) {
        if (at % 16 == 0) check_mask(grammar, state);
        const TokenGrammar::Forced forced = grammar.forced(state, 40);
        expect(forced.text.size() <= 40, "no more is forced than was asked for");
        const int next = grammar.after(state, static_cast<uint8_t>(text[at]));
        if (next == TokenGrammar::dead) {
            expect(forced.text.empty() || forced.text[0] != text[at], "what is forced may follow");
            return;
        }
        expect(forced.text.empty() || forced.text[0] == text[at], "nothing else may follow than what is forced");
        state = next;
        if (grammar.is_complete(state)) expect(grammar.accepts(state), "a complete text is whole");
    }
}

}  // namespace
}  // namespace medusa

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace medusa;
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    const size_t zero = std::min(all.find('\0'), all.size());
    try {
        TokenGrammar grammar(std::make_shared<const Grammar>(parse_gbnf(all.substr(0, zero))), vocabulary());
        follow(grammar, all.substr(std::min(zero + 1, all.size())));
    } catch (const Error& error) {
        expect_one_line(error);
    }
    return 0;
}
