#include "compose/model_session.h"

#include <algorithm>

#include "heads/levels.h"
#include "llama/sampler_chain.h"
#include "llama/target.h"

namespace medusa {
namespace {

// What a session with dynamic trees starts from: as deep as there are heads.
Tree chain_of(int depth) {
    std::vector<Choice> choices;
    for (int n = 1; n <= depth; ++n) choices.push_back(Choice(n, 0));
    return Tree(std::move(choices));
}

void check(const LlamaModel& model, const Heads* heads, const Tree& tree, const ModelSessionParams& params) {
    if (tree.size() > 1 && !heads) throw Error("a tree needs heads to fill it: give --heads or --no-spec");
    if (tree.leaf_count() > 1 && model.is_recurrent()) {
        throw Error(model.path() + " is a recurrent model, which follows a chain of drafts, no tree: leave out --tree");
    }
    if (heads && (tree.depth() > heads->head_count() || tree.max_rank() >= heads->output_rows())) {
        throw Error("the tree is " + std::to_string(tree.depth()) + " deep, there are " +
                    std::to_string(heads->head_count()) + " heads: choose a smaller tree");
    }
    if (heads && &heads->model() != &model) throw Error("these heads were loaded for another model");
    if (params.context_size < 0) {
        throw Error("a context of " + std::to_string(params.context_size) + " tokens: give a positive --ctx-size");
    }
}

}  // namespace

ComposedSession open_session(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads,
                             const ModelSessionParams& params) {
    if (params.dynamic && (params.tree.size() > 1 || (!heads && !params.recycling))) {
        throw Error("dynamic trees need heads, and no tree beside them");
    }
    DraftingPlan plan;
    plan.tree = params.dynamic && heads ? chain_of(heads->head_count()) : params.tree;
    plan.dynamic = params.dynamic;
    plan.lookup = params.lookup;
    plan.recycling = params.recycling;
    plan.chains_only = model->is_recurrent();
    plan.ranks = heads ? heads->output_rows() : model->vocab_size();
    check(*model, heads.get(), plan.tree, params);
    if (params.recycling && plan.has_heads() && !params.dynamic) {
        throw Error("recycled tokens draft beside dynamic trees, not beside a fixed one");
    }

    ContextParams context;
    context.context_size = params.context_size > 0
                               ? params.context_size
                               : std::min(model->train_context(), ModelSessionParams::default_context);
    context.threads = params.threads;
    context.type_k = params.type_k;
    context.type_v = params.type_v;
    if (plan.has_heads() && heads->metadata().reads_all_states()) context.max_outputs = LlamaTarget::state_rows;
    const auto make_target = [&](const TreeBounds& bounds) {
        return std::make_unique<LlamaTarget>(model, context, bounds, plan.has_heads());
    };
    const auto levels = [&](Target& target) {
        return make_levels(heads, plan.tree.depth(), [&target] { return target.thread_use().threads; });
    };
    const auto chain = [vocab_size = model->vocab_size()](const SamplingParams& sampling,
                                                          std::span<const Token> prompt) {
        return make_chain(sampling, vocab_size, prompt);
    };
    return compose_session(plan, make_target, levels, model, chain);
}

}  // namespace medusa
