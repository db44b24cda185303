// Where an answer no longer says anything new.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "base/common.h"

namespace medusa {

// Tells, token by token, whether an answer ends in a loop: the same `longest` tokens or fewer, over and over, for at
// least `tokens` tokens and `rounds` times. Of a long round, `many` tokens and `few` times are enough: 20 of them would
// be pages. Depends on the answer's tokens alone, so that drafted and plain text end at the same place.
class LoopWatch {
  public:
    static constexpr size_t longest = 512, rounds = 20, tokens = 256, few = 4, many = 1280;

    // text: the answer; its last token is new. Returns the tokens in a round, 0 outside loops.
    size_t push(std::span<const Token> text) {
        for (size_t period = 1; period <= longest && period < text.size(); ++period) {
            size_t& same = same_[period - 1];
            same = text.back() == text[text.size() - 1 - period] ? same + 1 : 0;
            if (same > 0 && same + period >= least(period)) return period;
        }
        return 0;
    }

  private:
    static constexpr size_t least(size_t period) {
        return std::max(tokens, std::min(rounds * period, std::max(many, few * period)));
    }

    std::array<size_t, longest> same_{};  // by period: how many of the newest tokens repeat the round before
};

}  // namespace medusa
