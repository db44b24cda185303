#include "compose/compose.h"

#include <algorithm>

#include "drafting/heads_drafter.h"
#include "drafting/lookahead.h"
#include "drafting/lookup.h"
#include "drafting/recycling.h"
#include "drafting/watchdog.h"

namespace medusa {
namespace {

DynamicTreeParams dynamic_params(const DraftingPlan& plan) {
    DynamicTreeParams params;
    params.ranks = std::min(params.ranks, plan.ranks);
    if (plan.dynamic) params.max_nodes = std::min(params.max_nodes, plan.dynamic->max_nodes);
    if (plan.chains_only) {
        params.ranks = params.width = 1;
        params.max_nodes = longest_chain;
    }
    params.proposal_ranks = std::min(params.proposal_ranks, plan.ranks);
    return params;
}

TreeBounds bounds_of(const DraftingPlan& plan, const LookupParams& lookup) {
    if (plan.lookahead) return LookaheadDrafter::bounds(*plan.lookahead);
    if (plan.chains_only) {
        const bool drafts = plan.has_levels() || plan.lookup || plan.recycling;
        return {1, drafts ? std::max(longest_chain, plan.tree.size()) : 1};
    }
    const TreeBounds fixed{plan.tree.leaf_count(), plan.tree.size()};
    const TreeBounds bounds = plan.dynamic || plan.recycling ? DynamicTreeDrafter::bounds(dynamic_params(plan)) : fixed;
    return plan.lookup ? LookupDrafter::bounds(bounds, lookup) : bounds;
}

// The levels and recycled tokens of a plan, without prompt lookup; null if neither drafts.
std::unique_ptr<Drafter> tree_drafter(const DraftingPlan& plan, Target& target, const MakeLevels& make_levels,
                                      const DynamicTreeStart& start, const std::shared_ptr<DraftCost>& cost,
                                      ComposedSession& parts) {
    std::unique_ptr<LevelSource> levels;
    if (plan.has_levels()) levels = make_levels(target);
    if (plan.recycling) {
        auto recycled = std::make_unique<RecyclingLevels>(target.vocab_size());
        if (levels) {
            levels = std::make_unique<MergedLevels>(std::move(levels), std::move(recycled));
        } else {
            levels = std::move(recycled);
        }
    }
    if (!levels) return nullptr;
    if (!plan.dynamic && !plan.recycling) return std::make_unique<HeadsDrafter>(std::move(levels), plan.ranks);
    auto drafter =
        std::make_unique<DynamicTreeDrafter>(std::move(levels), dynamic_params(plan), start.calibration, cost);
    parts.dynamic = drafter.get();
    return drafter;
}

}  // namespace

ComposedSession compose_session(const DraftingPlan& plan, const MakeTarget& make_target, const MakeLevels& make_levels,
                                std::shared_ptr<const Vocabulary> vocabulary, MakeChain make_chain) {
    LookupParams lookup;
    if (plan.chains_only) {
        lookup.chains_only = true;
        lookup.max_nodes = longest_chain - 1;
    }
    const DynamicTreeStart start = plan.dynamic.value_or(DynamicTreeStart());
    lookup.total_nodes = start.max_nodes;
    const TreeBounds bounds = bounds_of(plan, lookup);
    auto target = make_target(bounds);
    auto cost = std::make_shared<DraftCost>(start.curve, plan.learns_cost && start.learns_cost);
    ComposedSession composed;
    std::unique_ptr<Drafter> drafter;
    if (plan.lookahead) {
        drafter = std::make_unique<LookaheadDrafter>(*plan.lookahead);
    } else {
        drafter = tree_drafter(plan, *target, make_levels, start, cost, composed);
    }
    if (plan.lookup) drafter = std::make_unique<LookupDrafter>(std::move(drafter), lookup, cost);
    composed.session =
        std::make_unique<Session>(std::move(target), std::move(drafter), std::move(vocabulary), std::move(make_chain),
                                  plan.tree, std::make_unique<Economy>(std::move(cost)), bounds);
    return composed;
}

}  // namespace medusa
