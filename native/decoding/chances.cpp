#include "decoding/chances.h"

#include <algorithm>
#include <cmath>

#include "decoding/sampler.h"

namespace medusa {

Chances chances_of(std::span<const float> logits, Token token, int most) {
    const double best = logits[argmax(logits)];
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(logit - best);
    const double whole = best + std::log(sum);
    Chances out{logits[token] - whole, {}};
    std::vector<int> likeliest;
    if (most > 0) top_indices(logits, most, likeliest);
    for (const int i : likeliest) out.top.push_back({static_cast<Token>(i), logits[i] - whole});
    return out;
}

}  // namespace medusa
