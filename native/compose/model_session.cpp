#include "compose/model_session.h"

#include <algorithm>

#include "heads/levels.h"
#include "in_graph/levels.h"
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
    if ((tree.size() > 1 || params.lookup || params.recycling) && model.is_recurrent()) {
        throw Error(model.path() + " is a recurrent model, whose state cannot follow drafts: use --no-spec");
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

StepFacts step_facts(const LlamaModel& model, const DraftingPlan& plan) {
    StepFacts facts;
    facts.on_device = ggml_backend_dev_type(model.output_device()) != GGML_BACKEND_DEVICE_TYPE_CPU;
    facts.fixed_tree = !plan.dynamic;
    facts.heads_alone = !plan.lookup && !plan.recycling;
    return facts;
}

// For sessions that may accept in the model's graph; null for others. Completes the facts.
std::shared_ptr<in_graph::StepTail> make_tail(const std::shared_ptr<Heads>& heads, const DraftingPlan& plan,
                                              StepFacts& facts) {
    if (!host_reason(facts, {}).empty()) return nullptr;
    std::unique_ptr<in_graph::Drafts> drafts;
    if (plan.has_heads()) {
        try {
            drafts = in_graph::make_drafts(heads, plan.tree);
        } catch (const OutOfMemory& failure) {
            facts.lacks = failure.what();
        }
        facts.heads_fit = drafts != nullptr || !facts.lacks.empty();
        if (!drafts) return nullptr;
    }
    return std::make_shared<in_graph::StepTail>(std::move(drafts));
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
    StepFacts facts = step_facts(*model, plan);
    const auto tail = make_tail(heads, plan, facts);
    context.tail = tail;
    const auto make_target = [&](TreeBounds bounds) {
        const bool all_states = plan.has_heads() && heads->metadata().reads_all_states();
        if (all_states) bounds.nodes = std::max(bounds.nodes, LlamaTarget::state_rows);
        auto target = std::make_unique<LlamaTarget>(model, context, bounds, plan.has_heads());
        if (tail) facts.lacks = target->tail_lacks();
        return target;
    };
    const auto levels = [&](Target&) -> std::unique_ptr<LevelSource> {
        auto on_host = make_levels(heads, plan.tree.depth(), params.threads);
        if (!tail) return on_host;
        return std::make_unique<in_graph::InGraphLevels>(heads, tail, std::move(on_host));
    };
    const auto chain = [vocab_size = model->vocab_size()](const SamplingParams& sampling,
                                                          std::span<const Token> prompt) {
        return make_chain(sampling, vocab_size, prompt);
    };
    ComposedSession composed = compose_session(plan, make_target, levels, model, chain);
    composed.session->set_step_facts(std::move(facts));
    return composed;
}

}  // namespace medusa
