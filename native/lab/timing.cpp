// How long the kernels take, compared with what memory and the instruction set allow.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include "kernels/limits.h"
#include "kernels/product.h"
#include "kernels/team.h"
#include "lab/lab.h"

namespace medusa::lab {
namespace {

using kernels::Format;
using kernels::Kernels;

// The best that this many threads reach.
struct Limits {
    double bandwidth = 0;                   // bytes per second
    std::map<const Kernels*, double> peak;  // multiplications per second
};

// A matrix of a format, packed: a few random groups of rows over and over.
void fill(const Format& format, const Options& options, Team& team, uint8_t* packed) {
    std::mt19937 random(7);
    const int64_t groups = options.rows / kernels::group_rows, sample_groups = std::min<int64_t>(groups, 16);
    const auto weights = random_weights(format, sample_groups * kernels::group_rows, options.columns, true, random);
    std::vector<uint8_t> sample(format.group_bytes(options.columns) * static_cast<size_t>(sample_groups));
    kernels::pack(format, weights.data(), sample.data(), options.columns, sample_groups * kernels::group_rows, 0,
                  sample_groups);
    const size_t group_bytes = format.group_bytes(options.columns);
    team.run([&](int thread) {
        for (int64_t g = groups * thread / team.size(); g < groups * (thread + 1) / team.size(); ++g) {
            std::memcpy(packed + static_cast<size_t>(g) * group_bytes,
                        &sample[static_cast<size_t>(g % sample_groups) * group_bytes], group_bytes);
        }
    });
}

// One matrix and its activations.
class Product {
  public:
    Product(const Format& format, const Options& options, Team& team, const Memory& packed)
        : format_(format), options_(options), packed_(packed), stride_(kernels::column_bytes(format, options.columns)) {
        const int widest = *std::max_element(options.widths.begin(), options.widths.end());
        std::mt19937 random(8);
        std::normal_distribution<float> normal;
        std::vector<float> x(static_cast<size_t>(options.columns));
        activations_.resize(stride_ * static_cast<size_t>(widest));
        result_.resize(static_cast<size_t>(widest * options.rows));
        for (int c = 0; c < widest; ++c) {
            for (float& v : x) v = normal(random);
            kernels::prepare(kernels::scalar, format, x.data(), options.columns, &activations_[stride_ * c]);
        }
        fill(format, options, team, packed.data);
    }

    double seconds(const Kernels& one, int n, Team& team) {
        const int64_t groups = options_.rows / kernels::group_rows;
        return team.run([&](int thread) {
            kernels::multiply(one, format_, packed_.data, options_.columns, options_.rows,
                              groups * thread / team.size(), groups * (thread + 1) / team.size(), activations_.data(),
                              stride_, n, result_.data(), static_cast<size_t>(options_.rows));
        });
    }

    double bytes() const {
        return static_cast<double>(kernels::packed_bytes(format_, options_.columns, options_.rows));
    }

  private:
    const Format& format_;
    const Options& options_;
    const Memory& packed_;
    size_t stride_;
    std::vector<uint8_t> activations_;
    std::vector<float> result_;
};

using Times = std::map<int, double>;  // width -> seconds, the shortest of all rounds

// Times of one kernel and format.
struct Line {
    const Kernels* kernels;
    const Format* format;
    double bytes;
    Times times;
};

// All widths in turn, so that all run under the same conditions.
Times measure(Product& product, const Kernels& one, const Options& options, Team& team) {
    Times times;
    for (int round = 0; round < options.rounds; ++round) {
        for (int n : options.widths) {
            const double seconds = product.seconds(one, n, team);
            const auto [at, is_new] = times.emplace(n, seconds);
            if (!is_new) at->second = std::min(at->second, seconds);
        }
    }
    return times;
}

void print_lines(const Line& line, const Options& options, const Limits& limits) {
    for (const auto& [n, seconds] : line.times) {
        const double macs = static_cast<double>(options.rows) * static_cast<double>(options.columns) * n / seconds;
        const double bytes = line.bytes / seconds, peak = limits.peak.at(line.kernels);
        std::printf("| %-6s | %-12s | %2d | %8.2f | %5.1f | %6.1f | %9.2f | %11.0f%% |",
                    ggml_type_name(line.format->type), line.kernels->name, n, seconds * 1e3, bytes / 1e9, macs / 1e9,
                    seconds / line.times.at(1), 100 * bytes / limits.bandwidth);
        std::printf(peak > 0 ? " %6.0f%% |\n" : "      - |\n", 100 * macs / peak);
    }
}

void print_table(const std::vector<Line>& lines, const Options& options, const Limits& limits, int threads) {
    std::printf("\n## %d thread%s\n\nReading memory: %.1f GB/s. Dot products on registers:", threads,
                threads == 1 ? "" : "s", limits.bandwidth / 1e9);
    for (const auto& [one, peak] : limits.peak) std::printf(" %s %.0f GMAC/s;", one->name, peak / 1e9);
    std::printf(
        "\n\n| type   | kernels      |  n |       ms |  GB/s | GMAC/s | T(n)/T(1) | of bandwidth | of peak |\n");
    std::printf("|--------|--------------|----|----------|-------|--------|-----------|--------------|---------|\n");
    for (const Line& line : lines) print_lines(line, options, limits);
}

void time_team(const Options& options, Team& team, const Memory& memory) {
    auto all = chosen_kernels(options);
    all.erase(all.begin());  // the reference
    Limits limits;
    const auto measure_limits = [&] {
        limits.bandwidth = std::max(limits.bandwidth, bandwidth(team, memory, options.rounds));
        for (const Kernels* one : all) limits.peak[one] = std::max(limits.peak[one], peak(team, *one, options.rounds));
    };
    std::vector<Line> lines;
    for (const Format* format : chosen_formats(options)) {
        measure_limits();
        Product product(*format, options, team, memory);
        for (const Kernels* one : all) {
            lines.push_back({one, format, product.bytes(), measure(product, *one, options, team)});
        }
    }
    print_table(lines, options, limits, team.size());
}

}  // namespace

void time_kernels(const Options& options) {
    size_t bytes = 0;
    for (const Format* format : chosen_formats(options)) {
        bytes = std::max(bytes, kernels::packed_bytes(*format, options.columns, options.rows));
    }
    const Memory memory(bytes);
    std::memset(memory.data, 1, memory.size);
    for (int threads : std::set{1, options.threads}) {
        Team team(threads);
        time_team(options, team, memory);
    }
}

}  // namespace medusa::lab
