#include <string>

#include "grammar/gbnf.h"
#include "grammar/tokens.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

std::string bytes_of(const nb::bytes& bytes) {
    return {bytes.c_str(), bytes.size()};
}

// A grammar over the tokens of a vocabulary that tests make up.
std::unique_ptr<TokenGrammar> token_grammar(std::shared_ptr<const Grammar> grammar, const std::vector<nb::bytes>& texts,
                                            const std::vector<Token>& ends) {
    std::vector<std::string> tokens;
    for (const nb::bytes& text : texts) tokens.push_back(bytes_of(text));
    std::vector<bool> ending(tokens.size());
    for (const Token token : ends) ending.at(static_cast<size_t>(token)) = true;
    return std::make_unique<TokenGrammar>(std::move(grammar),
                                          std::make_shared<const VocabularyTrie>(std::move(tokens), ending));
}

}  // namespace

void bind_grammar(nb::module_& m) {
    nb::class_<GrammarStates>(m, "GrammarStates", "States by bytes; -1: no text goes on like this.")
        .def(nb::init<std::shared_ptr<const Grammar>>(), "grammar"_a)
        .def_prop_ro("start", &GrammarStates::start)
        .def(
            "after",
            [](GrammarStates& self, int state, const nb::bytes& text) {
                self.allow(4'000'000);
                return self.after(state, bytes_of(text));
            },
            "state"_a, "text"_a)
        .def(
            "following",
            [](GrammarStates& self, int state) {
                self.allow(4'000'000);
                std::vector<int> bytes;
                for (int byte = 0; byte < 256; ++byte) {
                    if (self.after(state, static_cast<uint8_t>(byte)) != GrammarStates::dead) bytes.push_back(byte);
                }
                return bytes;
            },
            "state"_a)
        .def("accepts", &GrammarStates::accepts, "state"_a)
        .def("is_complete", &GrammarStates::is_complete, "state"_a)
        .def("forced", &GrammarStates::forced, "state"_a, "The only byte that may follow; -1: several, or the end.")
        .def_prop_ro("count", &GrammarStates::count)
        .def_prop_ro("bytes", &GrammarStates::bytes);
    nb::class_<TokenGrammar>(m, "TokenGrammar", "States by tokens; -1: forbidden, -2: after an end of generation.")
        .def(nb::new_(&token_grammar), "grammar"_a, "texts"_a, "ends"_a = std::vector<Token>{})
        .def_prop_ro("start", &TokenGrammar::start)
        .def("after", &TokenGrammar::after, "state"_a, "token"_a)
        .def("accepts", &TokenGrammar::accepts, "state"_a)
        .def("is_complete", &TokenGrammar::is_complete, "state"_a)
        .def(
            "allowed",
            [](TokenGrammar& self, int state) {
                const TokenSet& allowed = self.allowed(state);
                std::vector<Token> out;
                for (size_t token = 0; token < self.vocabulary().size(); ++token) {
                    if (allowed.contains(static_cast<Token>(token))) out.push_back(static_cast<Token>(token));
                }
                return out;
            },
            "state"_a)
        .def(
            "forced",
            [](TokenGrammar& self, int state, size_t most) {
                const auto found = self.forced(state, most);
                return nb::bytes(found.text.data(), found.text.size());
            },
            "state"_a, "most"_a = 1000)
        .def_prop_ro("masks_built", &TokenGrammar::masks_built);
}

}  // namespace medusa::testing
