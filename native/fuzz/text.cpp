// Bytes of tokens as text, with stop strings; and a tree of choices.
#include <string>
#include <vector>

#include "decoding/text_stream.h"
#include "decoding/tree.h"
#include "fuzz/target.h"

namespace medusa {
namespace {

// The first byte says how many bytes a token has, and how many stop strings of two bytes there are.
void stream(std::string_view input) {
    if (input.empty()) return;
    const size_t length = 1 + (static_cast<uint8_t>(input[0]) & 7), stops = static_cast<uint8_t>(input[0]) >> 6;
    input.remove_prefix(1);
    std::vector<std::string> stopping;
    for (size_t i = 0; i < stops && input.size() > 2; ++i, input.remove_prefix(2)) {
        stopping.emplace_back(input.substr(0, 2));
    }
    TextStream text(stopping), whole(stopping);
    std::string shown;
    for (size_t at = 0; at < input.size(); at += length) shown += text.push(std::string(input.substr(at, length)));
    shown += text.finish();
    expect(is_utf8(shown), "what is shown is UTF-8");
    std::string at_once = whole.push(std::string(input));
    at_once += whole.finish();
    expect(text.stopped() == whole.stopped() && shown == at_once, "the text does not depend on its pieces");
    expect(is_utf8(one_line(input)), "one line is UTF-8");
}

void tree(std::string_view input) {
    std::vector<Choice> choices(1);
    for (const char byte : input) {
        if (byte < 0) {
            choices.emplace_back();
        } else {
            choices.back().push_back(byte - 1);
        }
    }
    try {
        const Tree made(choices);
        expect(made.size() == static_cast<int>(choices.size()) + 1 && made.size() <= Tree::max_size, "a node each");
        for (int node = 1; node < made.size(); ++node) {
            expect(made.parent(node) < node, "parents come first");
            expect(!made.sequences(node).empty(), "each node has a leaf below it");
        }
        const Tree clipped = made.clipped(3, 4, 9);
        expect(clipped.size() <= 9 && clipped.depth() <= 3 && clipped.max_rank() < 4, "a clipped tree fits");
    } catch (const Error& error) {
        expect_one_line(error);
    }
}

}  // namespace
}  // namespace medusa

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    medusa::stream(input);
    medusa::tree(input);
    return 0;
}
