#include "decoding/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace medusa {

namespace {

// Maximum of a block in eight lanes: a loop that compilers turn into vector instructions.
float block_max(const float* values, size_t count) {
    float lanes[8];
    std::fill(std::begin(lanes), std::end(lanes), -std::numeric_limits<float>::infinity());
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (size_t lane = 0; lane < 8; ++lane) lanes[lane] = std::max(lanes[lane], values[i + lane]);
    }
    for (; i < count; ++i) lanes[0] = std::max(lanes[0], values[i]);
    return *std::max_element(std::begin(lanes), std::end(lanes));
}

constexpr size_t block_size = 256;

}  // namespace

void SamplingParams::check() const {
    if (!(top_p >= 0.0f)) throw Error("top-p must be at least 0 (1 switches it off)");
    if (!(repeat_penalty > 0.0f)) throw Error("repeat penalty must be above 0 (1 switches it off)");
    if (!std::isfinite(frequency_penalty) || !std::isfinite(presence_penalty)) {
        throw Error("penalties must be finite (0 switches them off)");
    }
}

Token argmax(std::span<const float> logits) {
    float best = -std::numeric_limits<float>::infinity();
    size_t best_block = 0;
    for (size_t start = 0; start < logits.size(); start += block_size) {
        const float top = block_max(&logits[start], std::min(block_size, logits.size() - start));
        if (top > best) {
            best = top;
            best_block = start;
        }
    }
    const auto block = logits.begin() + static_cast<std::ptrdiff_t>(best_block);
    const auto at = std::find(block, logits.end(), best);
    if (at == logits.end()) throw BadLogits();
    return static_cast<Token>(at - logits.begin());
}

void top_indices(std::span<const float> values, int k, std::vector<int>& out) {
    out.clear();
    // A short sorted list; blocks with no value above its end are skipped whole.
    float lowest = -std::numeric_limits<float>::infinity();
    const auto full = [&] { return out.size() == static_cast<size_t>(k); };
    for (size_t start = 0; start < values.size(); start += block_size) {
        const size_t end = std::min(values.size(), start + block_size);
        if (full() && !(block_max(&values[start], end - start) > lowest)) continue;
        for (size_t i = start; i < end; ++i) {
            if (full() ? !(values[i] > lowest) : values[i] != values[i]) continue;
            if (full()) out.pop_back();
            const auto place = std::upper_bound(out.begin(), out.end(), values[i],
                                                [&](float value, int other) { return value > values[other]; });
            out.insert(place, static_cast<int>(i));
            if (full()) lowest = values[out.back()];
        }
    }
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

StepRandom::StepRandom(uint64_t seed, uint64_t emitted, Purpose purpose)
    : key_(static_cast<uint64_t>(uniform(seed + static_cast<uint64_t>(purpose) * 0x9E3779B97F4A7C15ull, emitted) *
                                 0x1p53)) {}

Token draw(std::span<const Candidate> distribution, double u) {
    double cumulative = 0.0;
    for (const Candidate& candidate : distribution) {
        cumulative += candidate.p;
        if (u < cumulative) return candidate.token;
    }
    return distribution.back().token;  // rounding left the sum just below u
}

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
