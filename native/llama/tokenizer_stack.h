// How much stack libllama's tokenizers need for a text.
#pragma once

#include <cstddef>
#include <string_view>

namespace medusa {

// Bytes of stack for splitting `text` (UTF-8) into words. libllama does that for many tokenizers with std::regex, which
// in libstdc++ calls itself for every character of a match. pre: the file's tokenizer.ggml.pre. 0: any thread's stack
// is large enough. Throws Error for a text with so many characters of one kind in a row that it would take too long.
size_t tokenizer_stack(std::string_view text, std::string_view pre);

}  // namespace medusa
