// What streams draft along a given text, for whoever measures them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "heads/levels.h"
#include "llama/context.h"

namespace medusa {

class StreamLevels;

// Reads one text after another, each from an empty cache: all of a text's tokens in wide passes, then the streams at
// one position after the other.
class StreamReader {
  public:
    // longest: most tokens of a text. Throws Error for heads of another kind or model.
    StreamReader(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads, int longest, Threads threads);
    ~StreamReader();

    // levels: of the draft behind tokens[position], whose root is tokens[position + 1].
    using OnDraft = std::function<void(int position, HeadsLevels& levels)>;
    // At positions first .. tokens - 2.
    void read(std::span<const Token> tokens, int first, const OnDraft& on_draft);
    const Heads& heads() const { return *heads_; }

  private:
    std::shared_ptr<Heads> heads_;
    int longest_;
    LlamaContext context_;
    std::unique_ptr<StreamLevels> levels_;
};

}  // namespace medusa
