// Builds levels of a tree from the probabilities that draft heads give.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "drafting/level_source.h"
#include "heads/graph.h"
#include "heads/prefix_layer.h"
#include "heads/weights.h"
#include "llama/layer_tap.h"

namespace medusa {

// What heads read from their base.
DrafterNeeds needs_of(const Heads& heads);

// How many threads the newest pass of the model used: heads follow it.
using ThreadCount = std::function<int()>;

class HeadsLevels : public LevelSource {
  public:
    DrafterNeeds needs() const override { return needs_of(*heads_); }
    int depth() const override { return depth_; }
    void committed(int position, Token token, std::span<const float> state) final;
    void rolled_back(int position, int same) final;
    // The cells of the prefix layer.
    void save(StateWriter& out) final;
    void restore(StateReader& in) final;
    void begin(const DraftInput& input) final;
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) final;
    // No work is left for what was committed: a prefix layer's cache is complete.
    void settle();

    // Probabilities from head depth - 1, [n][output_rows] below each of the paths [n][depth] of the current step, or
    // one row that holds below all of them. Valid until the next call.
    virtual std::span<const float> probabilities(int depth, std::span<const Token> paths) = 0;

  protected:
    // Uses the first `depth` heads.
    HeadsLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads,
                std::shared_ptr<PrefixCache> cache = nullptr);

    // What the heads read in a step [h]: the newest token's state, or what the prefix layer makes of it.
    std::span<const float> state_of(const DraftInput& input);
    virtual void begin_step(const DraftInput& input) = 0;

    const std::shared_ptr<Heads> heads_;
    const int depth_;
    const ggml_backend_ptr backend_;

  private:
    std::unique_ptr<PrefixLayer> prefix_;
    ThreadCount threads_;
    std::vector<int> rows_;
};

// The `ranks` most probable rows of a head, most probable first.
void top_rows(std::span<const float> probabilities, int ranks, std::vector<int>& rows);

// Levels for the kind of heads given. attention: of the context that states come from; streams need it. cache: of a
// prefix layer, if others fill it, too; null: the layer makes its own.
std::unique_ptr<HeadsLevels> make_levels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads,
                                         const AttentionTap* attention = nullptr,
                                         std::shared_ptr<PrefixCache> cache = nullptr);

}  // namespace medusa
