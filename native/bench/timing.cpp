// What the kernels take, beside what memory and the instruction set allow.
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <new>
#include <set>

#include "lab.h"
#include "peak.h"
#include "team.h"

namespace medusa::lab {
namespace {

using kernels::Format;
using kernels::Kernels;

// On huge pages where the system gives them, as the weights of a model are.
class Memory {
  public:
    explicit Memory(size_t bytes) : size(bytes), data(static_cast<uint8_t*>(::operator new(bytes, alignment))) {
#if defined(__linux__)
        madvise(data, size, MADV_HUGEPAGE);
#endif
    }
    ~Memory() { ::operator delete(data, alignment); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    const size_t size;
    uint8_t* const data;

  private:
    static constexpr std::align_val_t alignment{2 << 20};
};

// What this many threads reach at best.
struct Limits {
    double bandwidth = 0;                   // bytes per second
    std::map<const Kernels*, double> peak;  // multiplications per second
};

volatile uint64_t sink;

void read_all(const uint8_t* data, size_t size) {
    constexpr size_t at_once = 16;
    uint64_t sum[at_once] = {};
    for (size_t i = 0; i + sizeof(sum) <= size; i += sizeof(sum)) {
        for (size_t j = 0; j < at_once; ++j) {
            uint64_t word;
            std::memcpy(&word, data + i + j * sizeof(word), sizeof(word));
            sum[j] += word;
        }
    }
    for (uint64_t part : sum) sink = part;
}

// Slice `index` of `parts` equal ones, in bytes of whole cache lines.
std::pair<size_t, size_t> slice(size_t size, int index, int parts) {
    const auto at = [&](int i) { return size / 64 * static_cast<size_t>(i) / static_cast<size_t>(parts) * 64; };
    return {at(index), at(index + 1)};
}

double bandwidth(Team& team, const Memory& memory, int rounds) {
    double best = 0;
    for (int round = 0; round < rounds; ++round) {
        const double seconds = team.run([&](int thread) {
            const auto [begin, end] = slice(memory.size, thread, team.size());
            read_all(memory.data + begin, end - begin);
        });
        best = std::max(best, static_cast<double>(memory.size) / seconds);
    }
    return best;
}

const Peak* peak_of(const Kernels& one) {
#if defined(__x86_64__) || defined(_M_X64)
    const Peak* all[] = {
        &peak_avx2,
        &peak_avxvnni,
        &peak_avx512vnni,
#if MEDUSA_HAS_AMX
        &peak_amx_int8,
#endif
    };
#elif defined(__aarch64__) || defined(_M_ARM64)
    const Peak* all[] = {&peak_neon_dotprod, &peak_neon_i8mm};
#else
    return nullptr;
#endif
    for (const Peak* peak : all) {
        if (std::strcmp(peak->name, one.name) == 0) return peak;
    }
    return nullptr;
}

// Multiplications per second of all threads; 0: not known.
double peak(Team& team, const Kernels& one, int rounds) {
    const Peak* known = peak_of(one);
    if (!known) return 0;
    constexpr int64_t loop = 200000;
    double best = 0;
    for (int round = 0; round < rounds; ++round) {
        const double seconds = team.run([&](int) { known->run(loop); });
        best = std::max(best, static_cast<double>(loop * known->per_round * team.size()) / seconds);
    }
    return best;
}

// A matrix of a format, packed: a few random groups of rows over and over.
void fill(const Format& format, const Options& options, Team& team, uint8_t* packed) {
    std::mt19937 random(7);
    const int64_t groups = options.rows / kernels::group_rows, sample_groups = std::min<int64_t>(groups, 16);
    const auto weights = random_weights(format, sample_groups * kernels::group_rows, options.columns, true, random);
    std::vector<uint8_t> sample(format.group_bytes(options.columns) * static_cast<size_t>(sample_groups));
    kernels::pack(format, weights.data(), sample.data(), options.columns, 0, sample_groups);
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
        : format_(format), options_(options), packed_(packed), stride_(kernels::column_bytes(options.columns)) {
        const int widest = *std::max_element(options.widths.begin(), options.widths.end());
        std::mt19937 random(8);
        std::normal_distribution<float> normal;
        std::vector<float> x(static_cast<size_t>(options.columns));
        activations_.resize(stride_ * static_cast<size_t>(widest));
        result_.resize(static_cast<size_t>(widest * options.rows));
        for (int c = 0; c < widest; ++c) {
            for (float& v : x) v = normal(random);
            kernels::scalar.quantise(format, x.data(), options.columns, &activations_[stride_ * c]);
        }
        fill(format, options, team, packed.data);
    }

    double seconds(const Kernels& one, int n, Team& team) {
        const int64_t groups = options_.rows / kernels::group_rows;
        return team.run([&](int thread) {
            one.multiply(format_, packed_.data, options_.columns, groups * thread / team.size(),
                         groups * (thread + 1) / team.size(), activations_.data(), stride_, n, result_.data(),
                         static_cast<size_t>(options_.rows));
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

// All widths in turn, so that all see the same weather.
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
