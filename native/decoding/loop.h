// Where an answer no longer says anything new.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/common.h"

namespace medusa {

// Tells, token by token, whether an answer ends in a loop: the same 1 to `longest` tokens, over and over, at least
// `rounds` times and for at least `tokens` tokens. Depends on the answer's tokens alone, so that drafted and plain text
// end at the same place.
class LoopWatch {
  public:
    static constexpr size_t longest = 64, rounds = 20, tokens = 256;

    // text: the answer; its last token is new. Returns the tokens in a round, 0 outside loops.
    size_t push(std::span<const Token> text) {
        for (size_t period = 1; period <= longest && period < text.size(); ++period) {
            size_t& same = same_[period - 1];
            same = text.back() == text[text.size() - 1 - period] ? same + 1 : 0;
            const size_t span = same + period;
            if (same > 0 && span >= rounds * period && span >= tokens) return period;
        }
        return 0;
    }

  private:
    std::array<size_t, longest> same_{};  // by period: how many of the newest tokens repeat the round before
};

}  // namespace medusa
