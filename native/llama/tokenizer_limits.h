// What libllama's tokenizers cannot stand: texts that take too much stack or time, vocabularies that they never get
// through.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/gguf_file.h"

struct llama_vocab;

namespace medusa {

// Texts that a tokenizer looks for in others.
class SoughtTexts {
  public:
    void add(std::string_view text) { sorted_.push_back(text); }
    // To be called when all are added.
    void sort();
    // How many there are in `text`, one after the other, each as long as possible; no more than `most` are counted.
    size_t count_in(std::string_view text, size_t most) const;

  private:
    size_t bytes_at(std::string_view text) const;

    std::vector<std::string_view> sorted_;
};

class TokenizerLimits {
  public:
    // vocab: the loaded file's, which has to outlive this. Throws Error for one with which some texts never end.
    TokenizerLimits(const llama_vocab* vocab, const GgufFile& file);
    // Bytes of stack for tokenizing `text` (UTF-8); 0: any thread's is large enough. Throws Error for a text that would
    // take too much or too long.
    size_t stack_for(std::string_view text, bool parse_special) const;

  private:
    enum class Kind { words, pieces, other };

    size_t stack_for_words(std::string_view text) const;
    void require_few_special(std::string_view text, bool parse_special) const;
    void require_few_unknown(std::string_view text) const;

    Kind kind_;
    std::string splitter_;
    SoughtTexts special_, user_defined_;               // the texts of all special tokens, of those that always count
    std::unordered_set<std::string_view> characters_;  // tokens of one character; of `pieces` alone
};

}  // namespace medusa
