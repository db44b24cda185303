// What libllama's tokenizers cannot stand: texts that take too much stack or time, vocabularies that they never get
// through.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/gguf_file.h"

struct llama_vocab;

namespace medusa {

class TokenizerLimits {
  public:
    // vocab: the loaded file's, which has to outlive this. Throws Error for one with which some texts never end.
    TokenizerLimits(const llama_vocab* vocab, const GgufFile& file);
    // Bytes of stack for tokenizing `text` (UTF-8); 0: any thread's is large enough. Throws Error for a text that would
    // take too much or too long.
    size_t stack_for(std::string_view text) const;

  private:
    enum class Kind { words, pieces, other };

    size_t stack_for_words(std::string_view text) const;
    void require_few_unknown(std::string_view text) const;

    Kind kind_;
    std::string splitter_;
    std::unordered_set<std::string_view> characters_;  // tokens of one character; of `pieces` alone
};

}  // namespace medusa
