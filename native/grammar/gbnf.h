// Grammars as text: GBNF, the format of llama.cpp.
#pragma once

#include <string_view>

#include "grammar/grammar.h"

namespace medusa {

// Rules `name ::= ...` with literals, [classes] of characters, `.`, ( ), |, *, +, ?, {m}, {m,}, {m,n} and # comments;
// the text begins with `root`. Throws GrammarError, one line that names the line of the text.
Grammar parse_gbnf(std::string_view text);

}  // namespace medusa
