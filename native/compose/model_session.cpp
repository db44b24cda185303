#include "compose/model_session.h"

#include <algorithm>

#include "draft_model/block_levels.h"
#include "draft_model/levels.h"
#include "draft_model/llama_branches.h"
#include "draft_model/pair_levels.h"
#include "drafting/lookahead.h"
#include "heads/levels.h"
#include "in_graph/levels.h"
#include "llama/next_layers.h"
#include "llama/sampler_chain.h"
#include "llama/state_readers.h"
#include "llama/target.h"

namespace medusa {
namespace {

// What a session with dynamic trees starts from: one as deep as there are heads.
Tree chain_of(int depth) {
    std::vector<Choice> choices;
    for (int n = 1; n <= depth; ++n) choices.push_back(Choice(n, 0));
    return Tree(std::move(choices));
}

void check_heads(const LlamaModel& model, const Heads& heads, const Tree& tree) {
    if (tree.depth() > heads.head_count() || tree.max_rank() >= heads.output_rows()) {
        throw Error("the tree is " + std::to_string(tree.depth()) + " deep, there are " +
                    std::to_string(heads.head_count()) + " heads: choose a smaller tree");
    }
    if (&heads.model() != &model) throw Error("these heads were loaded for another model");
}

void check_draft_model(const LlamaModel& model, const LlamaModel& draft) {
    if (draft.is_recurrent()) {
        throw Error(draft.path() +
                    " is a recurrent model, whose state cannot be rolled back: give another draft model");
    }
    check_same_vocabulary(model, draft);
}

// In a row.
int most_drafts(const LlamaModel& drafter) {
    if (drafter.has_layer_for_each_draft()) return drafter.next_layers();
    if (drafter.drafts_blocks()) return block_size(drafter.file()) - 1;
    return Tree::max_size;
}

void check_drafter(const LlamaModel& model, const LlamaModel& drafter, const Tree& tree) {
    if (drafter.next_layers() == 0) {
        throw Error(drafter.path() + " was loaded without layers for further tokens (MTP)");
    }
    if (drafter.reads_inner_states())
        check_same_vocabulary(model, drafter);  // what it takes from the model has its size
    check_next_layers_fit(model, drafter);
    check_same_vocabulary(model, drafter);
    const bool chains = drafter.has_layer_for_each_draft();
    if ((chains && tree.leaf_count() > 1) || tree.depth() > most_drafts(drafter)) {
        const std::string what = chains ? " drafts a chain of at most " : " drafts at most ";
        throw Error(drafter.path() + what + std::to_string(most_drafts(drafter)) + (chains ? " tokens" : " in a row"),
                    "leave out {tree}, or lower {draft_max}");
    }
}

// Levels that its layers can fill.
int drafter_depth(const LlamaModel& model, const LlamaModel& drafter, int draft_max) {
    int most = std::min(draft_max > 0 ? draft_max : ModelSessionParams::drafter_depth, most_drafts(drafter));
    if (model.is_recurrent()) most = std::min(most, longest_chain - 1);
    return most;
}

void check_lookahead(const LookaheadParams& params) {
    const std::string given =
        std::to_string(params.window) + "," + std::to_string(params.ngram) + "," + std::to_string(params.guesses);
    if (params.window < 1 || params.ngram < 2 || params.guesses < 1) {
        throw Error("lookahead " + given + ": give a window from 1, n-grams from 2 and guesses from 1");
    }
    const TreeBounds bounds = LookaheadDrafter::bounds(params);
    if (bounds.nodes > Tree::max_size) {
        throw Error("lookahead " + given + " checks " + std::to_string(bounds.nodes) + " tokens at a time, at most " +
                    std::to_string(Tree::max_size) + " are possible: choose smaller numbers");
    }
}

// The caller chose who drafts (medusa_cli/decoding/drafting.py): only what cannot run is refused.
void check(const LlamaModel& model, const Heads* heads, const Tree& tree, const ModelSessionParams& params) {
    if (tree.size() > 1 && !heads && !params.draft_model && !params.drafter) {
        throw Error("a tree needs heads to fill it", "give {heads} or {no_spec}");
    }
    if (model.is_recurrent() && (tree.leaf_count() > 1 || params.lookahead)) {
        throw Error(model.path() + " is a recurrent model, which can check a chain of drafts, not a tree",
                    params.lookahead ? "leave out {lookahead}" : "leave out {tree}");
    }
    const bool drafts = tree.size() > 1 || params.lookup || params.recycling || params.lookahead;
    if (drafts && !model.can_draft()) {
        throw Error(model.path() + ": llama.cpp cannot check drafts with " + model.architecture() + " models",
                    "use {no_spec}");
    }
    if ((heads != nullptr) + (params.draft_model != nullptr) + (params.drafter != nullptr) > 1) {
        throw Error("give heads, a draft model or a model with layers for further tokens, not several of them");
    }
    if (params.lookahead && (heads || params.draft_model || params.drafter || params.lookup || params.recycling)) {
        throw Error("lookahead cannot be combined with other drafts: leave them out");
    }
    if (heads) check_heads(model, *heads, tree);
    if (params.draft_model) check_draft_model(model, *params.draft_model);
    if (params.draft_rows.value_or(0) < 0) {
        throw Error("draft_rows is " + std::to_string(*params.draft_rows) + ": give 0 or more");
    }
    if (params.drafter) check_drafter(model, *params.drafter, tree);
    if (params.lookahead) check_lookahead(*params.lookahead);
    if (params.recycling && tree.size() > 1 && !params.dynamic) {
        throw Error("recycling works only with dynamic trees, not with a fixed one");
    }
    if (params.context_size < 0) {
        throw Error("a context of " + std::to_string(params.context_size) + " tokens", "give a positive {ctx_size}");
    }
}

DraftingPlan plan_of(const LlamaModel& model, const Heads* heads, const ModelSessionParams& params) {
    DraftingPlan plan;
    plan.tree = params.tree;
    if (params.dynamic && heads) plan.tree = chain_of(heads->head_count());
    if (params.dynamic && params.draft_model) plan.tree = chain_of(params.draft_max);
    if (params.dynamic && params.drafter) plan.tree = chain_of(drafter_depth(model, *params.drafter, params.draft_max));
    plan.dynamic = params.dynamic;
    plan.lookup = params.lookup;
    plan.recycling = params.recycling;
    plan.lookahead = params.lookahead;
    const bool several = params.drafter && params.drafter->has_layer_for_each_draft();
    plan.chains_only = model.is_recurrent() || several;
    plan.ranks = heads ? heads->output_rows() : model.vocab_size();
    return plan;
}

// A draft model, or layers for further tokens, as deep as the plan's tree, in a context of their own.
std::unique_ptr<LevelSource> draft_levels(const DraftingPlan& plan, const ModelSessionParams& params,
                                          ContextParams context, const LlamaTarget& target) {
    const int depth = plan.tree.depth();
    TreeBounds bounds{plan.tree.leaf_count(), plan.tree.size()};
    if (plan.dynamic && !plan.chains_only) {
        // Each level gives children to this many nodes; one child continues in its parent's sequence.
        const int width = DynamicTreeParams().width;
        bounds = {1 + (width - 1) * (depth - 1), width};
    }
    if (bounds.leaves > Tree::max_size) {
        throw Error("a tree " + std::to_string(depth) + " deep has more branches than llama.cpp has sequences",
                    "lower {draft_max}");
    }
    context.context_size = target.context_size();
    context.max_outputs = 1;
    context.tail = nullptr;
    context.next_states = false;
    context.tap_layers.clear();
    if (params.drafter) {
        if (params.drafter.get() != &target.context().model()) context.other = &target.context();
        if (params.drafter->drafts_blocks()) {
            return std::make_unique<BlockLevels>(params.drafter, context, depth, target.context().model());
        }
        return std::make_unique<PairLevels>(params.drafter, context, bounds, depth, target.context().model(),
                                            params.draft_rows);
    }
    auto model = std::make_unique<LlamaBranches>(params.draft_model, context, bounds, bounds.nodes * depth);
    return std::make_unique<DraftModelLevels>(std::move(model), target.vocab_size(), depth);
}

StepFacts step_facts(const LlamaModel& model, const DraftingPlan& plan, const ModelSessionParams& params) {
    StepFacts facts;
    facts.on_device = ggml_backend_dev_type(model.output_device()) != GGML_BACKEND_DEVICE_TYPE_CPU;
    facts.branches = !plan.chains_only;
    facts.draft_model = params.draft_model || params.drafter;
    facts.lookahead = plan.lookahead.has_value();
    return facts;
}

in_graph::DraftShape draft_shape(const DraftingPlan& plan, int vocab_size) {
    if (!plan.dynamic) return plan.tree;
    const int likeliest = plan.recycling ? static_cast<int>(in_graph::LikeliestRows::numbers(vocab_size)) : 0;
    return in_graph::grown_shape(plan.tree.depth(), plan.ranks, likeliest);
}

// For sessions that may accept in the model's graph; null for others. Completes the facts.
std::shared_ptr<in_graph::StepTail> make_tail(const std::shared_ptr<Heads>& heads, const DraftingPlan& plan,
                                              int context_size, StepFacts& facts) {
    if (!host_reason(facts, {}).empty()) return nullptr;
    std::unique_ptr<in_graph::Drafts> drafts;
    if (plan.has_levels()) {
        try {
            drafts = in_graph::make_drafts(heads, draft_shape(plan, heads->model().vocab_size()), context_size);
        } catch (const OutOfMemory& failure) {
            facts.lacks = failure.what();
        }
        if (!drafts) return nullptr;
    }
    return std::make_shared<in_graph::StepTail>(std::move(drafts), heads, plan.recycling);
}

}  // namespace

ComposedSession open_session(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads,
                             const ModelSessionParams& params) {
    const DraftingPlan plan = plan_of(*model, heads.get(), params);
    check(*model, heads.get(), plan.tree, params);

    ContextParams context;
    context.context_size = params.context_size > 0
                               ? params.context_size
                               : std::min(model->train_context(), ModelSessionParams::default_context);
    context.threads = params.threads;
    context.type_k = params.type_k;
    context.type_v = params.type_v;
    DrafterNeeds needs = heads && plan.has_levels() ? needs_of(*heads) : DrafterNeeds{};
    if (params.drafter && plan.has_levels()) {
        needs.hidden = true;
        context.next_states = !params.drafter->reads_inner_states();
        if (params.drafter->reads_inner_states()) needs.layers = layers_read(params.drafter->file());
    }
    context.tap_layers = needs.layers;
    context.tap_attention = needs.attention;
    StepFacts facts = step_facts(*model, plan, params);
    if (heads && plan.has_levels()) facts.heads_need = in_graph::heads_need(*heads);
    const auto tail = make_tail(heads, plan, context.context_size, facts);
    context.tail = tail;
    context.pads = plan.dynamic || plan.lookup || plan.recycling;
    context.states_alone = needs.all_states;
    if (needs.all_states) context.max_outputs = LlamaTarget::state_rows;
    const AttentionTap* attention = nullptr;
    const LlamaTarget* made = nullptr;
    const auto make_target = [&](const TreeBounds& bounds) {
        auto target = std::make_unique<LlamaTarget>(model, context, bounds, needs.hidden);
        attention = target->attention();
        made = target.get();
        if (tail) facts.lacks = target->tail_lacks();
        return target;
    };
    const auto levels = [&](Target& target) -> std::unique_ptr<LevelSource> {
        if (params.draft_model || params.drafter) return draft_levels(plan, params, context, *made);
        const auto threads = [&target] { return target.thread_use().threads; };
        auto cache = tail && tail->prefix() ? tail->prefix()->cache() : nullptr;
        auto on_host = make_levels(heads, plan.tree.depth(), threads, attention, std::move(cache));
        if (!tail) return on_host;
        return std::make_unique<in_graph::InGraphLevels>(heads, tail, std::move(on_host));
    };
    const auto chain = [vocab_size = model->vocab_size(), context_size = context.context_size](
                           const SamplingParams& sampling, std::span<const Token> prompt) {
        return make_chain(sampling, vocab_size, context_size, prompt);
    };
    ComposedSession composed = compose_session(plan, make_target, levels, model, chain);
    composed.session->set_step_facts(std::move(facts));
    return composed;
}

}  // namespace medusa
