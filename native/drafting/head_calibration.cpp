#include "drafting/head_calibration.h"

#include <algorithm>
#include <cmath>

#include "base/common.h"

namespace medusa {
namespace {

constexpr float lowest_odds = -6.0f, bin_width = 0.5f;  // of log-odds: 24 bins reach from 1/400 to 399/400
constexpr float least = 1e-4f, most = 0.999f;           // a child stays less likely than its parent
constexpr double doubted = 1, trusted = 64;             // records that a start without and with a table weighs
constexpr double memory = 400;                          // records of a bin, after which the old ones count half

double centre(int bin) {
    return 1.0 / (1.0 + std::exp(-(lowest_odds + bin_width * (bin + 0.5))));
}

}  // namespace

HeadCalibration::HeadCalibration(int depth, const Table& known) {
    for (int d = 1; d <= depth; ++d) {
        const std::vector<float>* start = static_cast<size_t>(d) <= known.size() ? &known[d - 1] : nullptr;
        if (start && start->size() != bins) {
            throw Error("a calibration has " + std::to_string(bins) + " values a head, not " +
                        std::to_string(start->size()) + ": tune again");
        }
        std::vector<Counts> counts;
        for (int bin = 0; bin < bins; ++bin) {
            const double weight = start ? trusted : doubted;
            counts.push_back({weight * (start ? (*start)[bin] : centre(bin)), weight});
        }
        counts_.push_back(std::move(counts));
        map_.emplace_back(bins);
        pool(d);
    }
}

// Heads of NaN are right about nothing.
int HeadCalibration::bin_of(float q) {
    if (!(q > 0.0f)) return 0;
    if (q >= 1.0f) return bins - 1;
    return std::clamp(static_cast<int>((std::log(q / (1.0f - q)) - lowest_odds) / bin_width), 0, bins - 1);
}

void HeadCalibration::record(int depth, float q, bool came) {
    Counts& c = counts_[depth - 1][bin_of(q)];
    if (c.tried >= memory) {
        c.came /= 2;
        c.tried /= 2;
    }
    c.came += came ? 1.0 : 0.0;
    c.tried += 1.0;
    pool(depth);
}

// Isotonic regression: neighbouring bins out of order are taken as one.
void HeadCalibration::pool(int depth) {
    struct Block {
        Counts counts;
        int last;
    };
    Block blocks[bins];
    int count = 0;
    for (int bin = 0; bin < bins; ++bin) {
        blocks[count++] = {counts_[depth - 1][bin], bin};
        while (count > 1) {
            Block& before = blocks[count - 2];
            const Block& newest = blocks[count - 1];
            if (before.counts.came * newest.counts.tried <= newest.counts.came * before.counts.tried) break;
            before.counts.came += newest.counts.came;
            before.counts.tried += newest.counts.tried;
            before.last = newest.last;
            --count;
        }
    }
    int bin = 0;
    for (int i = 0; i < count; ++i) {
        const auto p = static_cast<float>(blocks[i].counts.came / blocks[i].counts.tried);
        for (; bin <= blocks[i].last; ++bin) map_[depth - 1][bin] = std::clamp(p, least, most);
    }
}

}  // namespace medusa
