// How much stack libllama's tokenizers need for a text.
#pragma once

#include <cstddef>
#include <string_view>

namespace medusa {

// Bytes of stack for splitting `text` (UTF-8) into words. Tokenizers of kind "gpt2" do that with std::regex, which in
// libstdc++ calls itself for every character of a match; what a match may hold differs by splitter, and for some it is
// the whole text. kind, splitter: the file's tokenizer.ggml.model and tokenizer.ggml.pre. 0: any thread's stack is
// large enough. Throws Error for a text that would take too much, or too long.
size_t tokenizer_stack(std::string_view text, std::string_view kind, std::string_view splitter);

}  // namespace medusa
