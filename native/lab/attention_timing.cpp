// How long attention takes after a long text, compared with a plain read of its keys and values.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/limits.h"
#include "kernels/team.h"
#include "lab/lab.h"

namespace medusa::lab {
namespace {

using kernels::Attention;
using kernels::Kernels;

struct Shape {
    int64_t heads, key_heads, size;
};
constexpr Shape shapes[] = {{9, 3, 64}, {12, 2, 128}};
constexpr size_t all_layers = size_t{96} << 20;  // bytes of keys and values, more than caches hold

// Caches for several layers of one shape, and the rows of a pass.
class Layers {
  public:
    Layers(const Shape& shape, kernels::CellType type, int64_t cells, int tokens, Team& team, const Memory& memory)
        : team_(team),
          memory_(memory),
          q_(static_cast<size_t>(shape.heads * shape.size * tokens), 0.1f),
          out_(q_.size()),
          mask_(static_cast<size_t>(cells * tokens)) {
        a_.heads = shape.heads, a_.key_heads = shape.key_heads, a_.tokens = tokens, a_.cells = cells;
        a_.key_size = a_.value_size = shape.size, a_.key_type = a_.value_type = type;
        a_.q = reinterpret_cast<const char*>(q_.data()), a_.q_head = static_cast<size_t>(shape.size) * 4;
        a_.q_token = static_cast<size_t>(shape.heads) * a_.q_head;
        a_.k_head = a_.v_head = kernels::cell_bytes(type, shape.size);
        a_.k_cell = a_.v_cell = static_cast<size_t>(shape.key_heads) * a_.k_head;
        a_.mask = reinterpret_cast<const char*>(mask_.data()), a_.mask_token = static_cast<size_t>(cells) * 2;
        a_.out = out_.data(), a_.scale = 1 / std::sqrt(static_cast<float>(shape.size));
        // Each token of a tree sees the text and itself.
        for (int t = 0; t < tokens; ++t) {
            for (int other = 0; other < tokens; ++other) {
                if (other != t) mask_[static_cast<size_t>(t * cells + cells - tokens + other)] = 0xFC00;
            }
        }
        scratch_.resize(kernels::attention_scratch(a_, kernels::attention_batch(a_), team.size()) + 64);
    }

    size_t layer_bytes() const { return 2 * static_cast<size_t>(a_.cells) * a_.k_cell; }

    // Seconds for the quickest layer: others may have been interrupted.
    double seconds(const Kernels& one) {
        const auto layers = static_cast<int64_t>(memory_.size / layer_bytes());
        std::atomic<int> arrived{0};
        double best = INFINITY;
        team_.run([&](int thread) {
            for (int64_t layer = 0, waits = 0; layer < layers; ++layer) {
                const auto begin = std::chrono::steady_clock::now();
                attend(one, layer, thread, arrived, waits);
                const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
                if (thread == 0) best = std::min(best, took.count());
            }
        });
        return best;
    }

  private:
    void attend(const Kernels& one, int64_t layer, int thread, std::atomic<int>& arrived, int64_t& waits) {
        Attention a = a_;
        a.k = reinterpret_cast<const char*>(memory_.data) + static_cast<size_t>(layer) * layer_bytes();
        a.v = a.k + layer_bytes() / 2;
        auto* scratch = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch_.data()) + 63) / 64 * 64);
        const int64_t batch = kernels::attention_batch(a);
        for (int64_t begin = 0; begin < a.rows(); begin += batch) {
            const kernels::AttentionShare share{begin, std::min(begin + batch, a.rows()), thread, team_.size(),
                                                scratch};
            for (int phase = 0; phase < kernels::attention_phases; ++phase) {
                one.attend(a, share, phase);
                arrived.fetch_add(1);
                ++waits;
                while (arrived.load() < waits * team_.size()) {
                }
            }
        }
    }

    Team& team_;
    const Memory& memory_;
    std::vector<float> q_, out_;
    std::vector<uint16_t> mask_;
    std::vector<char> scratch_;
    Attention a_{};
};

}  // namespace

void time_attention(const Options& options) {
    const Memory memory(all_layers);
    auto* halves = reinterpret_cast<uint16_t*>(memory.data);
    std::mt19937 random(5);
    for (size_t i = 0; i < memory.size / 2; ++i) halves[i] = static_cast<uint16_t>(0x2800 + random() % 0x1000);
    auto all = chosen_kernels(options);
    all.erase(all.begin());  // the reference
    Team team(options.threads);
    std::printf(
        "\n| heads | kernels      |  n |  us a layer | GB/s | times a read |\n"
        "|-------|--------------|----|-------------|------|--------------|\n");
    for (const Shape& shape : shapes) {
        for (const Kernels* one : all) {
            if (!one->attend) continue;
            for (const int n : options.widths) {
                Layers layers(shape, options.cache, options.cells / kernels::attention_lanes * kernels::attention_lanes,
                              n, team, memory);
                double best = INFINITY, read = 0;
                for (int round = 0; round < options.rounds; ++round) {
                    read = std::max(read, bandwidth(team, memory, 1));
                    best = std::min(best, layers.seconds(*one));
                }
                const double bytes = static_cast<double>(layers.layer_bytes());
                std::printf("| %lldx%lld | %-12s | %2d | %11.1f | %4.1f | %12.2f |\n",
                            static_cast<long long>(shape.heads), static_cast<long long>(shape.size), one->name, n,
                            best * 1e6, bytes / best / 1e9, best * read / bytes);
            }
        }
    }
}

}  // namespace medusa::lab
