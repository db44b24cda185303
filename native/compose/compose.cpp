#include "compose/compose.h"

#include <algorithm>

#include "drafting/economy.h"
#include "drafting/heads_drafter.h"
#include "drafting/lookup_drafter.h"
#include "drafting/merged_levels.h"
#include "drafting/recycling.h"

namespace medusa {
namespace {

// Nodes of a draft for a recurrent model, root included: one tile of the kernels' columns. Each is a copy of the state.
constexpr int longest_chain = 8;

DynamicTreeParams dynamic_params(const DraftingPlan& plan) {
    DynamicTreeParams params;
    params.ranks = std::min(params.ranks, plan.ranks);
    if (plan.chains_only) {
        params.ranks = params.width = 1;
        params.max_nodes = longest_chain;
    }
    params.proposal_ranks = std::min(params.proposal_ranks, plan.ranks);
    return params;
}

TreeBounds bounds_of(const DraftingPlan& plan, const LookupParams& lookup) {
    if (plan.chains_only) {
        const bool drafts = plan.has_heads() || plan.lookup || plan.recycling;
        return {1, drafts ? std::max(longest_chain, plan.tree.size()) : 1};
    }
    const TreeBounds fixed{plan.tree.leaf_count(), plan.tree.size()};
    const TreeBounds bounds = plan.dynamic || plan.recycling ? DynamicTreeDrafter::bounds(dynamic_params(plan)) : fixed;
    return plan.lookup ? LookupDrafter::bounds(bounds, lookup) : bounds;
}

}  // namespace

ComposedSession compose_session(const DraftingPlan& plan, const MakeTarget& make_target, const MakeLevels& make_levels,
                                std::shared_ptr<const Vocabulary> vocabulary, MakeChain make_chain) {
    LookupParams lookup;
    if (plan.chains_only) {
        lookup.chains_only = true;
        lookup.max_nodes = longest_chain - 1;
    }
    auto target = make_target(bounds_of(plan, lookup));
    const DynamicTreeStart start = plan.dynamic.value_or(DynamicTreeStart());
    auto cost = std::make_shared<DraftCost>(start.curve, plan.learns_cost);
    ComposedSession composed;
    std::unique_ptr<Drafter> drafter;
    std::unique_ptr<LevelSource> levels;
    if (plan.has_heads()) levels = make_levels(*target);
    if (plan.recycling) {
        auto recycled = std::make_unique<RecyclingLevels>(target->vocab_size());
        if (levels) {
            levels = std::make_unique<MergedLevels>(std::move(levels), std::move(recycled));
        } else {
            levels = std::move(recycled);
        }
    }
    if (levels && (plan.dynamic || plan.recycling)) {
        auto dynamic =
            std::make_unique<DynamicTreeDrafter>(std::move(levels), dynamic_params(plan), start.calibration, cost);
        composed.dynamic = dynamic.get();
        drafter = std::move(dynamic);
    } else if (levels) {
        drafter = std::make_unique<HeadsDrafter>(std::move(levels), plan.ranks);
    }
    if (plan.lookup) drafter = std::make_unique<LookupDrafter>(std::move(drafter), lookup, cost);
    composed.session =
        std::make_unique<Session>(std::move(target), std::move(drafter), std::move(vocabulary), std::move(make_chain),
                                  plan.tree, std::make_unique<Economy>(std::move(cost)));
    return composed;
}

}  // namespace medusa
