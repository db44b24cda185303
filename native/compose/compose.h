// What a session is made of: which drafters, how large its trees can get, what decides whether drafts pay. The same for
// real models and for the model without weights that tests use.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "decoding/session.h"
#include "drafting/dynamic_tree.h"
#include "drafting/level_source.h"
#include "drafting/lookahead.h"

namespace medusa {

// Nodes in a draft for a model that follows only chains, root included: one tile of the kernels' columns. Each is a
// copy of a recurrent state.
inline constexpr int longest_chain = 8;

struct DraftingPlan {
    Tree tree;                                // the same one in each step; only the root: no levels are asked for
    std::optional<DynamicTreeStart> dynamic;  // trees grown for each step instead, as deep as `tree`
    int ranks = DynamicTreeParams().ranks;    // most children of a node that the levels can fill
    bool lookup = false;
    bool chains_only = false;  // the model can follow only one path of drafts: a recurrent state
    bool recycling = false;  // the model's own likeliest tokens draft, too: alone, or in a dynamic tree with the heads
    std::optional<LookaheadParams> lookahead;  // drafts alone
    bool learns_cost = true;                   // false: costs hold throughout, so that runs are repeatable

    // Whether heads or a draft model fill trees.
    bool has_levels() const { return tree.size() > 1; }
};

// A target that can verify trees within the bounds.
using MakeTarget = std::function<std::unique_ptr<Target>(const TreeBounds& bounds)>;
// Levels as deep as the plan's tree.
using MakeLevels = std::function<std::unique_ptr<LevelSource>(Target& target)>;

struct ComposedSession {
    std::unique_ptr<Session> session;
    const DynamicTreeDrafter* dynamic = nullptr;  // the part that grows trees, if there is one
};

ComposedSession compose_session(const DraftingPlan& plan, const MakeTarget& make_target, const MakeLevels& make_levels,
                                std::shared_ptr<const Vocabulary> vocabulary, MakeChain make_chain);

}  // namespace medusa
