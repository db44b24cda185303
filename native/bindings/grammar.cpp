#include "grammar/grammar.h"

#include "bindings/bindings.h"
#include "grammar/gbnf.h"
#include "grammar/states.h"

namespace medusa {
namespace {

constexpr size_t most_visits = 4'000'000;  // tens of milliseconds

bool matches(std::shared_ptr<const Grammar> grammar, const std::string& text) {
    const nb::gil_scoped_release released;
    GrammarStates states(std::move(grammar));
    states.allow(most_visits);
    const int state = states.after(states.start(), text);
    return state != GrammarStates::dead && states.accepts(state);
}

}  // namespace

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
             "text, for what is none, for left recursion, and for rules that no text matches.")
        .def("matches", &matches, "text"_a,
             "Whether a whole text follows it, in a time that is linear in both. NativeError where it is too "
             "ambiguous.");
}

}  // namespace medusa
