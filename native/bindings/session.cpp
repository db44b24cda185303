#include <algorithm>

#include "base/platform.h"
#include "bindings/bindings.h"
#include "bindings/ndarray.h"
#include "bindings/session_binding.h"
#include "compose/model_session.h"
#include "decoding/sequence_memory.h"
#include "decoding/session.h"
#include "llama/backend.h"

namespace medusa {
namespace {

constexpr const char* accept_names[] = {"greedy", "exact", "rejection", "typical", "nucleus", "synthetic"};

AcceptKind accept_kind(const std::string& name) {
    const auto found = std::find(std::begin(accept_names), std::end(accept_names), name);
    if (found != std::end(accept_names)) return static_cast<AcceptKind>(found - std::begin(accept_names));
    throw Error("unknown accept rule " + name + ": greedy, exact, rejection, typical or nucleus");
}

// How many threads the steps used.
nb::dict thread_statistics(const Counters& c) {
    nb::dict steps;
    for (const auto& [threads, ran] : c.by_threads) steps[nb::str(std::to_string(threads).c_str())] = ran.steps;
    nb::dict out;
    out["most"] = c.most_threads;
    out["steps"] = steps;
    out["reason"] = c.thread_reason();
    out["repeated_steps"] = c.repeated;
    return out;
}

bool on_main_thread() {
    const nb::object main = nb::module_::import_("threading").attr("main_thread")().attr("ident");
    return !main.is_none() && nb::cast<unsigned long>(main) == PyThread_get_thread_ident();
}

AcceptParams default_accept(const SamplingParams& sampling) {
    return {sampling.is_greedy() ? AcceptKind::greedy : AcceptKind::exact};
}

nb::dict statistics(const Generation& g) {
    const Counters& c = g.counters;
    nb::dict timings;
    timings["draft"] = c.draft_ms;
    timings["verify"] = c.verify_ms;
    timings["accept"] = c.accept_ms;
    timings["commit"] = c.commit_ms;
    timings["other"] = c.other_ms;
    nb::dict out;
    out["tokens_per_step"] = c.tokens_per_step();
    out["acceptance_per_depth"] = c.acceptance_per_depth();
    out["tokens_per_second"] = g.tokens_per_second();
    out["prompt_tokens_per_second"] = g.prompt_tokens_per_second();
    out["steps"] = c.steps;
    out["plain_steps"] = c.plain_steps;
    out["timings_ms"] = timings;
    out["ttft_ms"] = c.first_token_ms;
    out["peak_rss_bytes"] = peak_rss_bytes();
    out["tree_nodes"] = c.tree_nodes;
    out["accept"] = accept_names[static_cast<size_t>(g.accept)];
    out["threads"] = thread_statistics(c);
    out["drafts_ended"] = g.drafts_ended.empty() ? nb::object(nb::none()) : nb::object(nb::str(g.drafts_ended.c_str()));
    return out;
}

DynamicTreeStart make_dynamic_start(HeadCalibration::Table calibration, std::vector<std::pair<int, double>> costs,
                                    bool learns_costs, int max_nodes) {
    if (max_nodes < 1 || max_nodes > Tree::max_size) {
        throw Error("max_nodes: from 1 to " + std::to_string(Tree::max_size));
    }
    for (const auto& [nodes, cost] : costs) {
        if (nodes < 1 || !(cost > 0)) throw Error("the cost of a tree: positive, by a number of nodes from 1");
    }
    return {std::move(calibration), std::move(costs), learns_costs, max_nodes};
}

std::unique_ptr<SessionBinding> make_session(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads,
                                             const Tree* tree, int n_ctx, int n_threads, const std::string& type_k,
                                             const std::string& type_v, bool lookup, bool recycling,
                                             const std::optional<DynamicTreeStart>& dynamic,
                                             std::shared_ptr<LlamaModel> draft_model,
                                             std::shared_ptr<LlamaModel> drafter, std::optional<int> draft_rows,
                                             int draft_max, const std::optional<LookaheadParams>& lookahead) {
    ModelSessionParams params;
    params.context_size = n_ctx;
    params.threads = resolve_threads(n_threads);
    params.type_k = type_by_name(type_k);
    params.type_v = type_by_name(type_v);
    if (tree) params.tree = *tree;
    params.dynamic = dynamic;
    params.lookup = lookup;
    params.recycling = recycling;
    params.draft_model = std::move(draft_model);
    params.drafter = std::move(drafter);
    params.draft_rows = draft_rows;
    params.draft_max = draft_max;
    params.lookahead = lookahead;
    return std::make_unique<SessionBinding>(open_session(std::move(model), std::move(heads), params));
}

// The defaults of a session and its answers, by parameter name.
Facts defaults() {
    const SamplingParams sampling;
    const AcceptParams accept;
    nb::dict out;
    out["n_ctx"] = int{ModelSessionParams::default_context};
    out["top_k"] = sampling.top_k;
    out["top_p"] = sampling.top_p;
    out["min_p"] = sampling.min_p;
    out["repeat_penalty"] = sampling.repeat_penalty;
    out["frequency_penalty"] = sampling.frequency_penalty;
    out["presence_penalty"] = sampling.presence_penalty;
    out["repeat_last_n"] = sampling.repeat_last_n;
    out["epsilon"] = accept.epsilon;
    out["delta"] = accept.delta;
    return out;
}

constexpr const char* accept_doc =
    "kind: \"greedy\" | \"exact\" | \"rejection\" (both keep the distribution; rejection draws its drafts:\n"
    "SpecInfer's multi-round sampling) | \"typical\" (Medusa 2.3.1: p > min(epsilon, delta * exp(-H))) |\n"
    "\"nucleus\" (the Medusa repository's: the longest path whose tokens are drawn again from the top_p nucleus).\n\n"
    "model_alone: typical takes p and H of softmax(logits / temperature) instead of the chain's output, as\n"
    "published; nucleus always does. greedy_root: both continue with the likeliest token instead of a draw.\n"
    "\"synthetic\" accepts each first child with probability synthetic_rate, whatever the model says: for timing\n"
    "alone.";

void bind_params(nb::module_& m) {
    const SamplingParams sampling;
    const AcceptParams accept;
    nb::class_<SamplingParams>(
        m, "Sampling",
        "Sampler chain: logit bias, penalties, top-k, top-p, min-p, temperature. temperature <= 0: argmax.")
        .def(
            "__init__",
            [](SamplingParams* self, float temperature, int top_k, float top_p, float min_p, float repeat_penalty,
               float frequency_penalty, float presence_penalty, int repeat_last_n,
               const std::optional<std::map<Token, float>>& logit_bias, uint64_t seed) {
                const SamplingParams given{
                    temperature,      top_k,         top_p, min_p, repeat_penalty, frequency_penalty,
                    presence_penalty, repeat_last_n, {},    seed};
                given.check();
                new (self) SamplingParams(given);
                if (logit_bias) self->logit_bias.assign(logit_bias->begin(), logit_bias->end());
            },
            nb::kw_only(), "temperature"_a = sampling.temperature, "top_k"_a = sampling.top_k,
            "top_p"_a = sampling.top_p, "min_p"_a = sampling.min_p, "repeat_penalty"_a = sampling.repeat_penalty,
            "frequency_penalty"_a = sampling.frequency_penalty, "presence_penalty"_a = sampling.presence_penalty,
            "repeat_last_n"_a = sampling.repeat_last_n, "logit_bias"_a = nb::none(), "seed"_a = sampling.seed);
    nb::class_<AcceptParams>(m, "Accept", accept_doc)
        .def(
            "__init__",
            [](AcceptParams* self, const std::string& kind, float epsilon, float delta, bool model_alone,
               bool greedy_root, float synthetic_rate) {
                const AcceptParams given{accept_kind(kind), epsilon, delta, model_alone, greedy_root, synthetic_rate};
                given.check();
                new (self) AcceptParams(given);
            },
            "kind"_a, nb::kw_only(), "epsilon"_a = accept.epsilon, "delta"_a = accept.delta,
            "model_alone"_a = accept.model_alone, "greedy_root"_a = accept.greedy_root,
            "synthetic_rate"_a = accept.synthetic_rate);
}

void bind_answers(nb::module_& m) {
    nb::class_<Piece>(m, "Piece",
                      "One emitted token and the text that became printable with it (whole UTF-8 characters only).")
        .def_ro("token", &Piece::token)
        .def_ro("text", &Piece::text)
        .def_ro("drafted", &Piece::drafted,
                "Accepted draft (False: sampled from the base model's own logits as the next root).")
        .def_prop_ro(
            "logprob",
            [](const Piece& piece) { return piece.chances ? std::optional(piece.chances->logprob) : std::nullopt; },
            "ln p of the token, by the model alone: before temperature, penalties and biases; None where not asked\n"
            "for.")
        .def_prop_ro(
            "top",
            [](const Piece& piece) {
                std::vector<std::pair<Token, double>> top;
                if (piece.chances) {
                    for (const Chance& one : piece.chances->top) top.emplace_back(one.token, one.logprob);
                }
                return top;
            },
            "The likeliest tokens in its place and their ln p, likeliest first.");
    nb::class_<Generation>(m, "Generation")
        .def_ro("tokens", &Generation::tokens)
        .def_ro("parents", &Generation::parents, "The tree of each step, as Tree.parents.")
        .def_ro("drafts", &Generation::drafts, "The tokens of that tree, its root first.")
        .def_ro("paths", &Generation::paths, "Accepted tree nodes of each step, from the root downwards.")
        .def_ro("text", &Generation::text)
        .def_prop_ro(
            "stop_reason", [](const Generation& g) { return stop_reason_name(g.stop_reason); },
            "\"eos\" | \"stop\" | \"length\" | \"context_full\" | \"cancelled\" | \"loop\".")
        .def_ro("loop_tokens", &Generation::loop_tokens, "Of a loop that ended it: the tokens of a round; else 0.")
        .def_ro("prompt_tokens", &Generation::prompt_tokens)
        .def_ro("reused_tokens", &Generation::reused_tokens, "Prompt tokens that were already in the cache.")
        .def_prop_ro(
            "stats", [](const Generation& g) { return Facts(statistics(g)); },
            "The keys of docs/design.md, Reporting, but those that need more than this generation.");
}

}  // namespace

Generation SessionBinding::generate(const std::vector<Token>& prompt, const GenerateParams& params,
                                    const std::shared_ptr<const Cancellation>& cancellation, const nb::object& on_step,
                                    const nb::object& on_prompt) {
    const Busy busy(busy_);
    // Python exceptions never cross the engine (or libllama, which polls from C): they end the run and wait here.
    std::exception_ptr failure;
    const auto guarded = [&](auto&& call) {
        const nb::gil_scoped_acquire gil;
        try {
            call();
        } catch (...) {
            failure = std::current_exception();
        }
    };
    OnStep step;
    if (!on_step.is_none()) {
        step = [&](const std::vector<Piece>& pieces) {
            if (!failure) guarded([&] { on_step(pieces); });
        };
    }
    OnPrompt prompt_read;
    if (!on_prompt.is_none()) {
        prompt_read = [&](int done, int total) {
            if (!failure) guarded([&] { on_prompt(done, total); });
        };
    }
    Stopwatch since_poll;
    // Python handles signals on its main thread only. Other threads need not wait for the GIL, which a busy Python
    // thread releases only after 5 ms: all compute threads would wait with them.
    const bool handles_signals = on_main_thread();
    const StopPoll poll = [&] {
        constexpr double signal_interval_ms = 20;
        if (cancellation && cancellation->requested()) return true;
        if (handles_signals && since_poll.elapsed_ms() > signal_interval_ms && !failure) {
            since_poll.lap();
            guarded([] {
                if (PyErr_CheckSignals() != 0) throw nb::python_error();
            });
        }
        return failure != nullptr;
    };
    {
        const nb::gil_scoped_release released;
        session_->generate(prompt, params, step, poll, prompt_read);
    }
    if (failure) std::rethrow_exception(failure);
    return *session_->last();
}

constexpr const char* generate_doc =
    "Decodes until a stop condition. max_tokens < 0: until the context is full.\n\n"
    "logprobs: how many of the likeliest tokens each piece tells beside its own; < 0: none, nor its own.\n\n"
    "watchdog: steps may leave out the drafts where these do not pay by the clock (`plain_steps` counts them); what\n"
    "it learns stays with the session.\n\n"
    "grammar: what the answer follows. Its tokens are chosen among those that the grammar allows, before penalties\n"
    "and the rest of the chain; the answer ends as \"eos\" once nothing can follow. NativeError where the grammar "
    "asks\n"
    "for more work than a token may cost; `last` then has what was written. written: how many tokens at the end of\n"
    "the prompt are its beginning.\n\n"
    "on_prompt(done, total) runs before each piece of up to 512 tokens of the prompt that is read (128 on our "
    "kernels); total counts those\n"
    "that are not in the cache.\n\n"
    "on_step runs once per step with the GIL held. A Python exception in it, or a pending signal on the main thread\n"
    "(asked for every 20 ms), ends the generation within one step and is raised; the tokens emitted so far stay\n"
    "available as `last`. accept None: greedy at temperature 0, exact above.";

void bind_generate(nb::class_<SessionBinding>& session) {
    session.def(
        "generate",
        [](SessionBinding& self, const std::vector<Token>& prompt, int max_tokens,
           const std::optional<SamplingParams>& sampling, const std::optional<AcceptParams>& accept,
           const std::vector<std::string>& stop, bool ignore_eos, bool stop_loops, int logprobs, bool watchdog,
           std::shared_ptr<const Grammar> grammar, int written, const std::shared_ptr<const Cancellation>& cancellation,
           const Callback<void(nb::typed<nb::list, Piece>)>& on_step, const Callback<void(int, int)>& on_prompt) {
            GenerateParams params;
            params.max_tokens = max_tokens;
            params.sampling = sampling.value_or(SamplingParams{});
            params.accept = accept.value_or(default_accept(params.sampling));
            params.stop = stop;
            params.ignore_eos = ignore_eos;
            params.stop_loops = stop_loops;
            params.logprobs = logprobs;
            params.watchdog = watchdog;
            params.grammar = std::move(grammar);
            params.written = std::max(written, 0);
            return self.generate(prompt, params, cancellation, on_step, on_prompt);
        },
        "prompt"_a, nb::kw_only(), "max_tokens"_a = -1, "sampling"_a = nb::none(), "accept"_a = nb::none(),
        "stop"_a = std::vector<std::string>{}, "ignore_eos"_a = false, "stop_loops"_a = false, "logprobs"_a = -1,
        "watchdog"_a = false, "grammar"_a = nb::none(), "written"_a = 0, "cancellation"_a = nb::none(),
        "on_step"_a = nb::none(), "on_prompt"_a = nb::none(), generate_doc);
}

using SavedState = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using StateRoom = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_session_state(nb::class_<SessionBinding>& session) {
    session
        .def_prop_ro(
            "state_size",
            [](SessionBinding& self) {
                StateWriter counter;
                self.while_idle([&](Session& idle) { idle.save(counter); });
                return counter.size();
            },
            "Bytes that save_state() writes now.")
        .def(
            "save_state",
            [](SessionBinding& self, StateRoom out) {
                StateWriter writer({out.data(), out.size()});
                self.while_idle([&](Session& idle) { idle.save(writer); });
            },
            "out"_a,
            "Writes the cache of `cached_tokens`, and what drafts know of them, into an array of state_size bytes.")
        .def(
            "restore_state",
            [](SessionBinding& self, const std::vector<Token>& cached, SavedState state, bool drafts) {
                self.while_idle(
                    [&](Session& idle) { idle.restore(cached, StateReader({state.data(), state.size()}), drafts); });
            },
            "cached"_a, "state"_a, nb::kw_only(), "drafts"_a = true,
            "Takes such bytes in place of what is cached, with the tokens that were cached then. They must come from "
            "a\n"
            "session of the same model, cache types and kernels. drafts: its heads and drafts were the same, too; "
            "else\n"
            "drafts start anew. Throws NativeError where they do not fit: then nothing is cached.");
}

void bind_session_methods(nb::class_<SessionBinding>& session) {
    session.def("reset", [](SessionBinding& self) { self.idle_session().reset(); })
        .def(
            "host_reason",
            [](SessionBinding& self, const std::optional<SamplingParams>& sampling,
               const std::optional<AcceptParams>& accept) {
                const SamplingParams chosen = sampling.value_or(SamplingParams{});
                return self.session().host_reason(chosen, accept.value_or(default_accept(chosen)));
            },
            nb::kw_only(), "sampling"_a = nb::none(), "accept"_a = nb::none(),
            "Why steps of such an answer are accepted and drafted on the host; \"\" where the model's own graph\n"
            "does both.\n\n"
            "sampling, accept: as in generate().")
        .def_prop_ro("n_ctx", [](SessionBinding& self) { return self.session().context_size(); })
        .def_prop_ro(
            "tree", [](SessionBinding& self) { return self.session().tree(); },
            "What the heads fill in each step; lookup adds to it.")
        .def_prop_ro(
            "calibration",
            [](SessionBinding& self) -> std::optional<HeadCalibration::Table> {
                self.idle_session();
                if (self.dynamic()) return self.dynamic()->calibration();
                return std::nullopt;
            },
            "[head][bin]: how often a token comes of which the head gives log-odds within the bin's 24th of -6..6,\n"
            "as known by now; None without dynamic trees.")
        .def_prop_ro(
            "last",
            [](SessionBinding& self) -> std::optional<Generation> {
                if (const Generation* last = self.idle_session().last()) return *last;
                return std::nullopt;
            },
            "The newest generation, also when it was cut short by an exception (stop_reason \"cancelled\").")
        .def_prop_ro(
            "threads", [](SessionBinding& self) { return self.idle_session().target().thread_use().threads; },
            "Of the newest forward pass.")
        .def_prop_ro("cached_tokens", [](SessionBinding& self) { return self.idle_session().cached_tokens(); });
}

void bind_setup(nb::module_& m) {
    nb::class_<DynamicTreeStart>(
        m, "DynamicTree",
        "Trees that are grown in each step, by what the heads say there. What is not known is learned while\n"
        "decoding.")
        .def(nb::new_(&make_dynamic_start), nb::kw_only(), "calibration"_a = HeadCalibration::Table{},
             "costs"_a = std::vector<std::pair<int, double>>{}, "learns_costs"_a = true, "max_nodes"_a = Tree::max_size,
             "calibration: as Session.calibration. costs: (nodes with root, cost of a step in plain steps);\n"
             "learns_costs False: they hold throughout, so that runs repeat. max_nodes: of a step, root included.")
        .def_ro("calibration", &DynamicTreeStart::calibration)
        .def_ro("costs", &DynamicTreeStart::curve);
    const LookaheadParams lookahead;
    nb::class_<LookaheadParams>(
        m, "Lookahead",
        "Lookahead decoding: columns of the window, tokens of an n-gram, n-grams verified in a step at most.")
        .def(
            "__init__",
            [](LookaheadParams* self, int window, int ngram, int guesses) {
                new (self) LookaheadParams{window, ngram, guesses};
            },
            "window"_a = lookahead.window, "ngram"_a = lookahead.ngram, "guesses"_a = lookahead.guesses)
        .def_ro("window", &LookaheadParams::window)
        .def_ro("ngram", &LookaheadParams::ngram)
        .def_ro("guesses", &LookaheadParams::guesses);
    nb::class_<Cancellation>(m, "Cancellation",
                             "Ends the answers that it was given to, within one step, with stop_reason \"cancelled\".")
        .def(nb::init<>())
        .def("cancel", &Cancellation::cancel, "From any thread, before an answer begins or while it is written.")
        .def_prop_ro("requested", &Cancellation::requested, "Whether cancel() was called.");
}

constexpr const char* session_doc =
    "n_ctx 0: min(n_ctx_train, 4096). n_threads 0: as many as there are physical cores, or fewer where other\n"
    "programs need them. tree None: root only.\n\n"
    "dynamic: in place of a tree; .tree is then a chain of all heads.\n\n"
    "draft_model: fills the tree, or dynamic trees draft_max deep, in place of heads. Its cache is the session's\n"
    "own.\n\n"
    "drafter: a model loaded with next_layers, perhaps the same one: its layers for further tokens draft, likewise.\n"
    "draft_max 0: as deep as pays. Where they are several, each drafts one token. draft_rows: how many rows of its\n"
    "output matrix it chooses from, besides those of tokens in the text; None: all, or a part of a large vocabulary;\n"
    "0: all.\n\n"
    "lookahead: drafts alone.\n\n"
    "lookup: steps also draft what followed an earlier occurrence of the newest tokens; needs no heads.\n\n"
    "recycling: steps also draft what the model found likely after the same one or two tokens; with heads it needs\n"
    "dynamic trees, as these alone hold the drafts of both.";

void bind_session(nb::module_& m) {
    m.def(
        "defaults", &defaults,
        "What sessions (n_ctx) and answers (top_k, top_p, ..., epsilon, delta) go by, by the names of the parameters.");
    m.attr("LOWEST_TEMPERATURE") = float{SamplingParams::lowest_temperature};  // below, the likeliest token is taken
    m.attr("CHECKPOINT_BYTES") = size_t{ChainMemory::most_bytes};              // at most, per session
    bind_params(m);
    bind_answers(m);
    bind_setup(m);
    nb::class_<SessionBinding> session(
        m, "Session",
        "One conversation: a KV cache, a tree, counters. generate() reuses the longest cached prefix of the prompt.");
    session.def(nb::new_(&make_session), "model"_a, "heads"_a = nb::none(), nb::kw_only(), "tree"_a = nb::none(),
                "n_ctx"_a = 0, "n_threads"_a = 0, "type_k"_a = "f16", "type_v"_a = "f16", "lookup"_a = false,
                "recycling"_a = false, "dynamic"_a = nb::none(), "draft_model"_a = nb::none(), "drafter"_a = nb::none(),
                "draft_rows"_a = nb::none(), "draft_max"_a = 0, "lookahead"_a = nb::none(), session_doc);
    bind_generate(session);
    bind_session_state(session);
    bind_session_methods(session);
}

}  // namespace medusa
