#include "sampler.h"

#include <algorithm>
#include <limits>

namespace medusa {

Token argmax(std::span<const float> logits) {
    // Two passes that vectorise: the maximum of each block, then the position inside the winning block.
    constexpr size_t block = 256;
    float best = -std::numeric_limits<float>::infinity();
    size_t best_block = 0;
    for (size_t start = 0; start < logits.size(); start += block) {
        const size_t end = std::min(logits.size(), start + block);
        float lanes[8];
        std::fill(std::begin(lanes), std::end(lanes), -std::numeric_limits<float>::infinity());
        size_t i = start;
        for (; i + 8 <= end; i += 8) {
            for (size_t lane = 0; lane < 8; ++lane) {
                lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
            }
        }
        for (; i < end; ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
        const float top = *std::max_element(std::begin(lanes), std::end(lanes));
        if (top > best) {
            best = top;
            best_block = start;
        }
    }
    const size_t end = std::min(logits.size(), best_block + block);
    for (size_t i = best_block; i < end; ++i) {
        if (logits[i] == best) return static_cast<Token>(i);
    }
    return 0;  // no number at all in the logits
}

double uniform(uint64_t seed, uint64_t index) {
    // SplitMix64's finaliser over a Weyl sequence: stateless, and adjacent indices are uncorrelated.
    uint64_t x = seed * 0xD1342543DE82EF95ull + (index + 1) * 0x9E3779B97F4A7C15ull;
    for (int round = 0; round < 2; ++round) {
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        x ^= x >> 31;
    }
    return static_cast<double>(x >> 11) * 0x1.0p-53;
}

Token draw(std::span<const Candidate> distribution, double u) {
    double cumulative = 0.0;
    for (const Candidate& candidate : distribution) {
        cumulative += candidate.p;
        if (u < cumulative) return candidate.token;
    }
    return distribution.back().token;  // rounding left the sum just below u
}

}  // namespace medusa
