#include "grammar/grammar.h"

#include "bindings/bindings.h"
#include "grammar/gbnf.h"

namespace medusa {

void bind_grammar(nb::module_& m) {
    nb::class_<Grammar>(m, "Grammar", "What an answer may look like. Immutable: any number of sessions may share it.")
        .def(nb::new_([](const std::string& gbnf) {
                 return std::make_shared<const Grammar>([&] {
                     const nb::gil_scoped_release released;
                     return parse_gbnf(gbnf);
                 }());
             }),
             "gbnf"_a,
             "gbnf: rules in llama.cpp's format, the first text by `root`. NativeError, one line with the line of the\n"
             "text, for what is none, for left recursion, and for rules that no text matches.");
}

}  // namespace medusa
