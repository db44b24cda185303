// From what a draft head says of a token to how often such a token comes.
#pragma once

#include <vector>

namespace medusa {

// One ascending map per depth, over bins of the log-odds of the head's own probability. A bin counts, with old records
// fading, the tokens whose parent was right, and those of them that came; pooled bins keep the map ascending.
class HeadCalibration {
  public:
    static constexpr int bins = 24;
    using Table = std::vector<std::vector<float>>;  // [depth - 1][bin]: probability

    // Without a table the heads are taken at their word until records say otherwise.
    explicit HeadCalibration(int depth, const Table& known = {});

    // q: the head's probability of a token at `depth` (from 1), whose path was right up to there.
    void record(int depth, float q, bool came);
    // Above 0, below 1, ascending in q.
    float probability(int depth, float q) const { return map_[depth - 1][bin_of(q)]; }
    const Table& table() const { return map_; }

  private:
    struct Counts {
        double came, tried;
    };
    static int bin_of(float q);
    void pool(int depth);

    std::vector<std::vector<Counts>> counts_;
    Table map_;
};

}  // namespace medusa
