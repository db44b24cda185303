#include "bindings/session_binding.h"
#include "compose/compose.h"
#include "decoding/loop.h"
#include "draft_model/levels.h"
#include "drafting/draft_cost.h"
#include "drafting/lookup.h"
#include "drafting/watchdog.h"
#include "llama/sampler_chain.h"
#include "testing/fake_draft_model.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

class ScriptedPolicy final : public StepPolicy {
  public:
    explicit ScriptedPolicy(std::vector<bool> speculate) : speculate_(std::move(speculate)) {}
    void begin_generation(bool watched, bool) override {
        watched_ = watched;
        step_ = 0;
    }
    bool speculate() override { return !watched_ || speculate_[step_++ % speculate_.size()]; }
    void report(const StepReport&) override {}

  private:
    std::vector<bool> speculate_;
    bool watched_ = false;
    size_t step_ = 0;
};

struct FakeSetup {
    Tree tree;
    int vocab_size, context_size;
    double acceptance;
    uint64_t seed;
    float sharpness;
    int memory;
    bool lookup, dynamic, recycling, draft_model;
    std::optional<LookaheadParams> lookahead;
    double heads_ms;
    std::optional<int> snapshots, ends_after;
};

// A session over the fake model that also shows the fake's cache.
class FakeSession : public SessionBinding {
  public:
    explicit FakeSession(const FakeSetup& setup) : SessionBinding(make(setup)) {}

    FakeTarget& target() { return static_cast<FakeTarget&>(idle_session().target()); }

  private:
    static ComposedSession make(const FakeSetup& setup) {
        DraftingPlan plan;
        plan.tree = setup.tree;
        if (setup.dynamic) plan.dynamic.emplace();
        plan.ranks = setup.vocab_size;
        plan.lookup = setup.lookup;
        plan.recycling = setup.recycling;
        plan.lookahead = setup.lookahead;
        plan.chains_only = setup.snapshots.has_value();
        plan.learns_cost = setup.heads_ms > 0;  // otherwise runs are repeatable
        const auto make_target = [&](const TreeBounds& bounds) {
            return std::make_unique<FakeTarget>(setup.vocab_size, setup.context_size, setup.seed, setup.sharpness,
                                                bounds.leaves, setup.memory, setup.snapshots);
        };
        const auto make_levels = [&](Target& target) -> std::unique_ptr<LevelSource> {
            const FakeGuesses guesses(static_cast<FakeTarget&>(target), setup.acceptance, setup.seed + 1);
            const int depth = setup.tree.depth();
            if (!setup.draft_model)
                return std::make_unique<FakeLevels>(guesses, depth, setup.seed, setup.heads_ms, setup.ends_after);
            auto model = std::make_unique<FakeDraftModel>(guesses, setup.vocab_size, Tree::max_size);
            return std::make_unique<DraftModelLevels>(std::move(model), setup.vocab_size, depth);
        };
        const auto chain = [vocab_size = setup.vocab_size, context_size = setup.context_size](
                               const SamplingParams& sampling, std::span<const Token> prompt) {
            return make_chain(sampling, vocab_size, context_size, prompt);
        };
        return compose_session(plan, make_target, make_levels, std::make_shared<FakeVocabulary>(), chain);
    }
};

// A text stream fed piece by piece: (texts as they became printable, stopped).
std::pair<std::vector<std::string>, bool> stream(const std::vector<nb::bytes>& pieces, std::vector<std::string> stops) {
    TextStream text(std::move(stops));
    std::vector<std::string> out;
    for (const nb::bytes& piece : pieces) out.push_back(text.push(std::string(piece.c_str(), piece.size())));
    out.push_back(text.finish());
    return {out, text.stopped()};
}

std::vector<std::pair<Token, float>> distribution(const std::vector<float>& logits, const SamplingParams& sampling,
                                                  const std::vector<Token>& history) {
    constexpr int history_size = 4096;
    const auto chain = make_chain(sampling, static_cast<int>(logits.size()), history_size, {});
    for (const Token token : history) chain->accept(token);
    std::vector<Candidate> candidates;
    chain->apply(logits, candidates);
    std::vector<std::pair<Token, float>> out;
    for (const Candidate& c : candidates) out.emplace_back(c.token, c.p);
    return out;
}

std::optional<std::pair<size_t, size_t>> loop_end(const std::vector<Token>& text) {
    LoopWatch watch;
    for (size_t length = 1; length <= text.size(); ++length) {
        if (const size_t round = watch.push({text.data(), length})) return std::pair(length, round);
    }
    return std::nullopt;
}

constexpr const char* fake_session_doc =
    "memory: how many tokens the next one depends on (0: all); with few, the text comes to repeat itself.\n\n"
    "draft_model: a second model guesses, with branches and a cache of its own, in place of heads. heads_ms: each\n"
    "level of the heads takes so long, and costs are learned. dynamic: trees are grown, as deep as `tree`.\n"
    "snapshots: a recurrent model that can step back by so many tokens (0: it cannot); it follows chains.\n"
    "ends_after: so many drafts of an answer later, there are no more.";

void bind_lookup(nb::module_& m) {
    nb::class_<LookupIndex>(m, "LookupIndex")
        .def(nb::init<int, int>(), "min_length"_a, "max_length"_a)
        .def("append", &LookupIndex::append, "token"_a)
        .def("clear", &LookupIndex::clear)
        .def_prop_ro(
            "match", [](const LookupIndex& i) { return std::pair(i.match().length, i.match().next); },
            "Length of the longest suffix that occurred before (0: none), and where that occurrence ended last.")
        .def(
            "continuation",
            [](const LookupIndex& i, int count) {
                std::vector<Token> out;
                i.continuation(count, out);
                return out;
            },
            "count"_a);
    nb::class_<StepCost>(m, "StepCost")
        .def(nb::init<double>(), "prior"_a)
        .def("record", &StepCost::record, "nodes"_a, "ms"_a)
        .def_prop_ro("per_node", &StepCost::per_node, "Cost of one more node, in steps of the root alone.");
    nb::class_<LookupAccuracy>(m, "LookupAccuracy")
        .def(nb::init<int, int>(), "min_length"_a, "max_length"_a)
        .def("record", &LookupAccuracy::record, "length"_a, "came"_a)
        .def("probability", &LookupAccuracy::probability, "length"_a);
}

}  // namespace

void bind_session(nb::module_& m) {
    nb::class_<FakeSession, SessionBinding>(m, "FakeSession")
        .def(
            "__init__",
            [](FakeSession* self, const Tree& tree, int vocab_size, int context_size, double acceptance, uint64_t seed,
               float sharpness, bool lookup, int memory, bool dynamic, bool recycling, bool draft_model,
               const std::optional<LookaheadParams>& lookahead, double heads_ms, const std::optional<int>& snapshots,
               const std::optional<int>& ends_after) {
                new (self) FakeSession({tree, vocab_size, context_size, acceptance, seed, sharpness, memory, lookup,
                                        dynamic, recycling, draft_model, lookahead, heads_ms, snapshots, ends_after});
            },
            "tree"_a, nb::kw_only(), "vocab_size"_a = 32, "context_size"_a = 512, "acceptance"_a = 0.5, "seed"_a = 0,
            "sharpness"_a = 8.0f, "lookup"_a = false, "memory"_a = 0, "dynamic"_a = false, "recycling"_a = false,
            "draft_model"_a = false, "lookahead"_a = nb::none(), "heads_ms"_a = 0.0, "snapshots"_a = nb::none(),
            "ends_after"_a = nb::none(), fake_session_doc)
        .def(
            "logits_after", [](FakeSession& s, const std::vector<Token>& t) { return s.target().logits_after(t); },
            "tokens"_a)
        .def(
            "sequence", [](FakeSession& s, int id) { return s.target().cells().sequence(id); }, "id"_a)
        .def_prop_ro("cell_count", [](FakeSession& s) { return s.target().cells().size(); })
        .def_prop_ro("cache_calls", [](FakeSession& s) { return s.target().cells().calls(); });
    nb::class_<Watchdog>(m, "Watchdog", "The policy itself, told what steps cost: milliseconds and committed tokens.")
        .def(nb::init<>())
        .def("begin_generation", &Watchdog::begin_generation)
        .def("speculate", &Watchdog::speculate)
        .def("report", &Watchdog::report, "speculative"_a, "ms"_a, "tokens"_a);
    m.def(
        "script",
        [](SessionBinding& s, std::vector<bool> speculate) {
            s.idle_session().set_step_policy(std::make_unique<ScriptedPolicy>(std::move(speculate)));
        },
        "session"_a, "speculate"_a,
        "With watchdog=True: step i drafts if speculate[i % len]; in place of the watchdog.");
    bind_lookup(m);
    m.def("stream", &stream, "pieces"_a, "stops"_a);
    m.def("distribution", &distribution, "logits"_a, "sampling"_a, "history"_a = std::vector<Token>{});
    m.def("uniform", &uniform, "seed"_a, "index"_a);
    m.def("loop_end", &loop_end, "text"_a,
          "Of the shortest beginning that ends in a loop: its length, and the tokens of a round.");
    m.def(
        "tree_sequences",
        [](const Tree& tree) {
            std::vector<std::vector<int>> out;
            for (int node = 0; node < tree.size(); ++node) out.push_back(tree.sequences(node));
            return out;
        },
        "tree"_a, "Leaf indices below each node: the sequence ids the node is decoded with.");
    m.def("argmax", [](const std::vector<float>& logits) { return argmax(logits); }, "logits"_a);
}

}  // namespace medusa::testing
