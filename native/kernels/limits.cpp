#include "kernels/limits.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "kernels/peak.h"

namespace medusa::lab {
namespace {

using kernels::Kernels;

constexpr std::align_val_t alignment{2 << 20};

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

// Peaks of the kernels with this name: for bytes, as matrices need them, and for floats, as attention does.
struct Peaks {
    const char* name = "";
    const Peak *bytes = nullptr, *floats = nullptr;
};

Peaks peaks_of(const Kernels& one) {
    static const std::vector<Peaks> all = {
#if defined(__x86_64__) || defined(_M_X64)
        {"avx2", &peak_avx2, &peak_floats_avx2},
        {"avxvnni", &peak_avxvnni, &peak_floats_avx2},
        {"avx512vnni", &peak_avx512vnni, &peak_floats_avx512},
#if MEDUSA_HAS_AMX
        {"amx-int8", &peak_amx_int8, &peak_floats_avx512},
#endif
#elif defined(__aarch64__) || defined(_M_ARM64)
        {"neon-dotprod", &peak_neon_dotprod, &peak_floats_neon},
        {"neon-i8mm", &peak_neon_i8mm, &peak_floats_neon},
#endif
    };
    for (const Peaks& peaks : all) {
        if (std::strcmp(peaks.name, one.name) == 0) return peaks;
    }
    return {};
}

// 0 if there is no peak.
double best_of(Team& team, const Peak* peak, int rounds) {
    if (!peak) return 0;
    constexpr int64_t loop = 200000;
    double best = 0;
    for (int round = 0; round < rounds; ++round) {
        const double seconds = team.run([&](int) { peak->run(loop); });
        best = std::max(best, static_cast<double>(loop * peak->per_round * team.size()) / seconds);
    }
    return best;
}

}  // namespace

Memory::Memory(size_t bytes) : size(bytes), data(static_cast<uint8_t*>(::operator new(bytes, alignment))) {
#if defined(__linux__)
    madvise(data, size, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() {
    ::operator delete(data, alignment);
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

double peak(Team& team, const Kernels& one, int rounds) {
    return best_of(team, peaks_of(one).bytes, rounds);
}

double float_peak(Team& team, const Kernels& one, int rounds) {
    return best_of(team, peaks_of(one).floats, rounds);
}

}  // namespace medusa::lab
