// Every attention kernel against the scalar reference, bit for bit.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/attention.h"
#include "lab/guarded.h"
#include "lab/lab.h"

namespace medusa::lab {
namespace {

using kernels::Attention;
using kernels::Kernels;

constexpr int cases = 150;
constexpr uint16_t half_hidden = 0xFC00;  // -infinity

int between(int low, int high, std::mt19937& random) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

// Finite, from 2^-8 to 4 in size, now and then zero.
uint16_t random_half(std::mt19937& random) {
    if (random() % 64 == 0) return 0;
    return static_cast<uint16_t>(random() % 2 << 15 | between(7, 16, random) << 10 | random() % 1024);
}

// Operands of random sizes in memory of exactly their size.
class Operands {
  public:
    explicit Operands(std::mt19937& random)
        : key_heads_(between(1, 3, random)),
          heads_(key_heads_ * between(1, 5, random)),
          tokens_(between(1, 20, random)),
          cells_(between(1, 20, random) * kernels::attention_lanes),
          key_size_(between(1, 8, random) * kernels::attention_lanes),
          value_size_(between(1, 16, random) * kernels::attention_lanes),
          q_(sizeof(float) * count(heads_, tokens_, key_size_)),
          k_(2 * count(key_heads_, cells_, key_size_)),
          v_(2 * count(key_heads_, cells_, value_size_)),
          mask_(2 * count(1, tokens_, cells_)),
          has_mask_(random() % 8 != 0) {
        std::normal_distribution<float> normal(0, 3);
        auto* q = reinterpret_cast<float*>(q_.data());
        for (size_t i = 0; i < q_.size() / sizeof(float); ++i) q[i] = normal(random);
        for (Guarded* one : {&k_, &v_}) {
            auto* halves = reinterpret_cast<uint16_t*>(one->data());
            for (size_t i = 0; i < one->size() / 2; ++i) halves[i] = random_half(random);
        }
        auto* mask = reinterpret_cast<uint16_t*>(mask_.data());
        const unsigned visible = random() % 4;  // in quarters; 0: nobody sees anything
        for (size_t i = 0; i < mask_.size() / 2; ++i) {
            const bool seen = random() % 4 < visible;
            mask[i] = !seen ? half_hidden : random() % 16 ? uint16_t{0} : random_half(random);
        }
    }

    Attention attention(float* out) {
        Attention a{};
        a.tokens = tokens_, a.heads = heads_, a.key_heads = key_heads_, a.cells = cells_;
        a.key_size = key_size_, a.value_size = value_size_;
        const auto bytes = [](Guarded& memory) { return reinterpret_cast<const char*>(memory.data()); };
        a.q = bytes(q_), a.q_head = static_cast<size_t>(key_size_) * sizeof(float);
        a.q_token = static_cast<size_t>(heads_) * a.q_head;
        a.k = bytes(k_), a.k_cell = static_cast<size_t>(key_size_) * 2,
        a.k_head = static_cast<size_t>(cells_) * a.k_cell;
        a.v = bytes(v_), a.v_head = static_cast<size_t>(value_size_) * 2;
        a.v_cell = static_cast<size_t>(key_heads_) * a.v_head;
        if (has_mask_) a.mask = bytes(mask_), a.mask_token = static_cast<size_t>(cells_) * 2;
        a.out = out;
        a.scale = 1 / std::sqrt(static_cast<float>(key_size_));
        return a;
    }

    size_t out_bytes() const { return sizeof(float) * count(heads_, tokens_, value_size_); }
    size_t scratch_bytes() const { return kernels::attention_scratch(key_size_, value_size_, cells_); }

  private:
    static size_t count(int64_t a, int64_t b, int64_t c) { return static_cast<size_t>(a * b * c); }

    int64_t key_heads_, heads_, tokens_, cells_, key_size_, value_size_;
    Guarded q_, k_, v_, mask_;
    bool has_mask_;
};

bool agrees(const Kernels& one, Operands& operands, const std::vector<uint8_t>& expected) {
    Guarded out(operands.out_bytes());
    const Attention a = operands.attention(reinterpret_cast<float*>(out.data()));
    const int64_t middle = a.rows() / 3;  // as two threads would share them
    for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, std::pair{middle, a.rows()}}) {
        Guarded scratch(operands.scratch_bytes());
        one.attend(a, begin, end, scratch.data());
        if (!scratch.intact()) return false;
    }
    return std::memcmp(out.data(), expected.data(), expected.size()) == 0 && out.intact();
}

}  // namespace

bool check_attention(const Options& options) {
    auto all = chosen_kernels(options);
    all.erase(all.begin());  // the reference
    std::erase_if(all, [](const Kernels* one) { return !one->attend; });
    std::mt19937 random(9);
    std::string names;
    bool good = true;
    for (const Kernels* one : all) names += std::string(" ") + one->name;
    for (int i = 0; i < cases; ++i) {
        Operands operands(random);
        std::vector<uint8_t> expected(operands.out_bytes());
        const Attention a = operands.attention(reinterpret_cast<float*>(expected.data()));
        kernels::scalar.attend(a, 0, a.rows(), nullptr);
        for (const Kernels* one : all) {
            if (agrees(*one, operands, expected)) continue;
            std::printf("attention, %s: case %d differs from the reference\n", one->name, i);
            good = false;
        }
    }
    std::printf("check of attention: %s:%s\n", good ? "all bits equal the reference's" : "FAILED",
                names.empty() ? " none" : names.c_str());
    return good;
}

}  // namespace medusa::lab
