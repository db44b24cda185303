// Where the tokens of a tree come from, one level at a time.
#pragma once

#include <span>
#include <vector>

#include "decoding/drafter.h"

namespace medusa {

// Where a token comes from: what a probability is worth is learned separately for each origin.
enum class Origin : uint8_t { heads, recycled, both, chain };
inline constexpr int origins = 3;  // learned about here: a chain's giver knows what it is worth

// The `ranks` most probable tokens below each of n nodes, most probable first: [n][ranks].
struct LevelDrafts {
    int ranks = 0;
    std::vector<Token> tokens;
    std::vector<float> q;           // probability of the token given the path to it
    std::vector<Origin> origins{};  // empty: all from the heads

    Origin origin(size_t i) const { return origins.empty() ? Origin::heads : origins[i]; }
};

class LevelSource {
  public:
    virtual ~LevelSource() = default;
    virtual DrafterNeeds needs() const = 0;
    // Whether asking takes no time worth saving: then the source is asked at every step.
    virtual bool is_free() const { return false; }
    // begin() for a step that asks only for what takes no time worth saving. False: there is no such part.
    virtual bool begin_free(const DraftInput& input) { return false; }
    // A step that asks for nothing. A source that drafts ahead does not do so, and reaches nothing in the next step.
    virtual void rest() {}
    // How many levels it can fill.
    virtual int depth() const = 0;
    // A generation starts after `prompt`.
    virtual void prompt(std::span<const Token> prompt) {}
    // As in Drafter.
    virtual void committed(int position, Token token, std::span<const float> state) {}
    virtual int resumes_at(int same) const { return same; }
    virtual void rolled_back(int position, int same) {}
    virtual void verified(const Verified& step) {}
    virtual void save(StateWriter& out) {}
    virtual void restore(StateReader& in) {}
    // A step starts. The root is the last token of input.context.
    virtual void begin(const DraftInput& input) = 0;
    // Whether level() can be asked below the node that `path` leads to, from the root on.
    virtual bool reaches(std::span<const Token> path) const { return true; }
    // Tokens at depth `depth` (from 1) below n nodes; paths [n][depth]: the tokens from the root down to each node.
    // Siblings are distinct. Within a step, levels are asked for in order.
    virtual void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) = 0;
};

}  // namespace medusa
