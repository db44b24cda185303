// Every gated delta net against the scalar reference, bit for bit, and the reference against sums in double precision.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/delta_net.h"
#include "lab/guarded.h"
#include "lab/lab.h"

namespace medusa::lab {
namespace {

using kernels::DeltaNet;
using kernels::Kernels;

constexpr int cases = 60;
constexpr double tolerance = 1e-4;  // of outputs and states, whose sizes are about 1

int between(int low, int high, std::mt19937& random) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

std::vector<float> numbers(int64_t count, float low, float high, std::mt19937& random) {
    std::uniform_real_distribution<float> one(low, high);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = one(random);
    return out;
}

class Operands {
  public:
    explicit Operands(std::mt19937& random)
        : size_(kernels::delta_net_lanes * between(1, 8, random)),
          tokens_(between(1, 19, random)),
          key_heads_(between(1, 3, random)),
          heads_(key_heads_ * between(1, 2, random)),
          slots_(between(1, 5, random)),
          by_key_(random() % 2 == 0),
          past_caches_(random() % 2 == 0),
          q_(numbers(tokens_ * key_heads_ * size_, -1, 1, random)),
          k_(numbers(tokens_ * key_heads_ * size_, -1, 1, random)),
          v_(numbers(tokens_ * heads_ * size_, -1, 1, random)),
          decay_(numbers(tokens_ * heads_ * (by_key_ ? size_ : 1), -2, 0, random)),
          beta_(numbers(tokens_ * heads_, 0, 1, random)),
          before_(numbers(heads_ * size_ * size_, -1, 1, random)) {
        const float length = 1 / std::sqrt(static_cast<float>(size_));  // keys of about length 1, as models have them
        for (float& x : k_) x *= length;
    }

    int64_t outputs() const { return tokens_ * heads_ * size_; }
    int64_t results() const { return outputs() + slots_ * heads_ * size_ * size_; }

    // The results are [outputs, states].
    DeltaNet net(float* results) const {
        DeltaNet net{};
        const auto head = static_cast<size_t>(size_) * sizeof(float);
        net.q = reinterpret_cast<const char*>(q_.data()), net.k = reinterpret_cast<const char*>(k_.data());
        net.v = reinterpret_cast<const char*>(v_.data());
        net.q_head = net.k_head = net.v_head = head;
        net.q_token = net.k_token = head * static_cast<size_t>(key_heads_);
        net.v_token = head * static_cast<size_t>(heads_);
        net.decay = decay_.data(), net.beta = beta_.data(), net.before = before_.data();
        net.out = results, net.after = results + outputs();
        net.after_slot = heads_ * size_ * size_;
        net.decay_by_key = by_key_, net.past_caches = past_caches_, net.size = size_, net.tokens = tokens_,
        net.heads = heads_;
        net.query_heads = net.key_heads = key_heads_, net.slots = slots_;
        return net;
    }

    // The largest difference from sums in double precision.
    double error(const DeltaNet& net) const {
        double largest = 0;
        for (int64_t head = 0; head < heads_; ++head) {
            for (int64_t value = 0; value < size_; ++value) largest = std::max(largest, row_error(net, head, value));
        }
        return largest;
    }

  private:
    double row_error(const DeltaNet& net, int64_t head, int64_t value) const {
        const int64_t at = (head * size_ + value) * size_;
        std::vector<double> row(before_.begin() + at, before_.begin() + at + size_);
        double largest = 0;
        for (int64_t t = 0; t < tokens_; ++t) {
            const float* q = q_.data() + (t * key_heads_ + head % key_heads_) * size_;
            const float* k = k_.data() + (t * key_heads_ + head % key_heads_) * size_;
            const int64_t of_head = t * heads_ + head;
            double product = 0, out = 0;
            for (int64_t i = 0; i < size_; ++i) {
                row[i] *= std::exp(static_cast<double>(by_key_ ? decay_[of_head * size_ + i] : decay_[of_head]));
                product += row[i] * k[i];
            }
            const double delta = (v_[of_head * size_ + value] - product) * beta_[of_head];
            for (int64_t i = 0; i < size_; ++i) {
                row[i] += delta * k[i];
                out += row[i] * q[i];
            }
            out /= std::sqrt(static_cast<double>(size_));
            largest = std::max(largest, std::abs(out - net.out[of_head * size_ + value]));
            const int64_t slot = tokens_ - 1 - t;
            if (slot >= slots_) continue;
            const float* after = net.after + slot * heads_ * size_ * size_ + at;
            for (int64_t i = 0; i < size_; ++i) largest = std::max(largest, std::abs(row[i] - after[i]));
        }
        return largest;
    }

    int64_t size_, tokens_, key_heads_, heads_, slots_;
    bool by_key_, past_caches_;
    std::vector<float> q_, k_, v_, decay_, beta_, before_;
};

// As two threads would divide the rows. Slots that nobody writes keep their contents.
bool agrees(const Kernels& one, const Operands& operands, const std::vector<float>& expected) {
    Guarded memory(expected.size() * sizeof(float));
    auto* results = reinterpret_cast<float*>(memory.data());
    std::fill(results, results + expected.size(), 0.0f);
    const DeltaNet net = operands.net(results);
    const int64_t middle = net.rows() / 3 / kernels::delta_net_rows * kernels::delta_net_rows;
    one.delta_net(net, middle, net.rows());
    one.delta_net(net, 0, middle);
    return std::memcmp(results, expected.data(), expected.size() * sizeof(float)) == 0 && memory.intact();
}

}  // namespace

bool check_delta_net(const Options& options) {
    auto all = chosen_kernels(options);
    all.erase(all.begin());  // the reference
    std::mt19937 random(11);
    std::string names;
    bool good = true;
    for (const Kernels* one : all) names += std::string(" ") + one->name;
    for (int i = 0; i < cases; ++i) {
        const Operands operands(random);
        std::vector<float> expected(static_cast<size_t>(operands.results()));
        const DeltaNet net = operands.net(expected.data());
        kernels::scalar.delta_net(net, 0, net.rows());
        if (const double error = operands.error(net); !(error < tolerance)) {
            std::printf("gated delta net: case %d of the reference is off by %g\n", i, error);
            good = false;
        }
        for (const Kernels* one : all) {
            if (agrees(*one, operands, expected)) continue;
            std::printf("gated delta net, %s: case %d differs from the reference\n", one->name, i);
            good = false;
        }
    }
    std::printf("check of the gated delta net: %s:%s\n", good ? "all bits equal the reference's" : "FAILED",
                names.empty() ? " none" : names.c_str());
    return good;
}

}  // namespace medusa::lab
