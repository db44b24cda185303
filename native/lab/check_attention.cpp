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
using kernels::CellType;
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

CellType random_type(std::mt19937& random) {
    constexpr CellType types[] = {CellType::f16, CellType::f16, CellType::q8_0, CellType::q4_0};
    return types[random() % std::size(types)];
}

// Keys or values [cell][key head][number].
class Cells {
  public:
    Cells(int64_t cells, int64_t key_heads, int most, std::mt19937& random)
        : type(random_type(random)),
          size(between(1, most, random) *
               (type == CellType::f16 ? kernels::attention_lanes : kernels::quantized_block)),
          head_bytes(kernels::cell_bytes(type, size)),
          cell_bytes(head_bytes * static_cast<size_t>(key_heads)),
          memory_(cell_bytes * static_cast<size_t>(cells)) {
        for (size_t i = 0; i < memory_.size(); ++i) memory_.data()[i] = static_cast<uint8_t>(random());
        for (size_t i = 0; i < memory_.size(); i += type == CellType::f16 ? 2 : kernels::block_bytes(type)) {
            const uint16_t half = random_half(random);
            std::memcpy(memory_.data() + i, &half, sizeof(half));
        }
    }
    const char* data() { return reinterpret_cast<const char*>(memory_.data()); }

    const CellType type;
    const int64_t size;
    const size_t head_bytes, cell_bytes;

  private:
    Guarded memory_;
};

// Operands of random sizes in memory of exactly their size.
class Operands {
  public:
    explicit Operands(std::mt19937& random)
        : key_heads_(between(1, 3, random)),
          heads_(key_heads_ * between(1, 5, random)),
          tokens_(between(1, 20, random)),
          cells_(between(1, 20, random) * kernels::attention_lanes),
          k_(cells_, key_heads_, 4, random),
          v_(cells_, key_heads_, 8, random),
          q_(sizeof(float) * count(heads_, tokens_, k_.size)),
          mask_(2 * count(1, tokens_, cells_)),
          has_mask_(random() % 8 != 0),
          cap_(random() % 3 == 0 ? 5.0f : 0.0f) {
        std::normal_distribution<float> normal(0, 3);
        auto* q = reinterpret_cast<float*>(q_.data());
        for (size_t i = 0; i < q_.size() / sizeof(float); ++i) q[i] = normal(random);
        if (random() % 3 == 0) sinks_.resize(static_cast<size_t>(heads_));
        for (float& sink : sinks_) sink = normal(random);
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
        a.key_type = k_.type, a.value_type = v_.type, a.key_size = k_.size, a.value_size = v_.size;
        a.q = reinterpret_cast<const char*>(q_.data()), a.q_head = static_cast<size_t>(a.key_size) * sizeof(float);
        a.q_token = static_cast<size_t>(heads_) * a.q_head;
        a.k = k_.data(), a.k_head = k_.head_bytes, a.k_cell = k_.cell_bytes;
        a.v = v_.data(), a.v_head = v_.head_bytes, a.v_cell = v_.cell_bytes;
        if (has_mask_) a.mask = reinterpret_cast<const char*>(mask_.data()), a.mask_token = count(1, 2, cells_);
        if (!sinks_.empty()) a.sinks = sinks_.data();
        a.out = out;
        a.scale = 1 / std::sqrt(static_cast<float>(a.key_size));
        a.cap = cap_;
        return a;
    }

    size_t out_bytes() const { return sizeof(float) * count(heads_, tokens_, v_.size); }

  private:
    static size_t count(int64_t a, int64_t b, int64_t c) { return static_cast<size_t>(a * b * c); }

    int64_t key_heads_, heads_, tokens_, cells_;
    Cells k_, v_;
    Guarded q_, mask_;
    bool has_mask_;
    float cap_;
    std::vector<float> sinks_;
};

bool agrees(const Kernels& one, Operands& operands, const std::vector<uint8_t>& expected) {
    Guarded out(operands.out_bytes());
    const Attention a = operands.attention(reinterpret_cast<float*>(out.data()));
    const int64_t middle = a.rows() / 3;  // as two threads would divide them, both of them dividing the cells
    for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, std::pair{middle, a.rows()}}) {
        if (begin == end) continue;
        const int parts = 1 + static_cast<int>(a.cells / kernels::attention_lanes % 3);
        Guarded scratch(kernels::attention_scratch(a, end - begin, parts));
        for (int phase = 0; phase < kernels::attention_phases; ++phase) {
            for (int part = 0; part < parts; ++part) one.attend(a, {begin, end, part, parts, scratch.data()}, phase);
        }
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
        kernels::scalar.attend(a, {0, a.rows(), 0, 1, nullptr}, 0);
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
