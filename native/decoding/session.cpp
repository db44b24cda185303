#include "decoding/session.h"

#include <algorithm>
#include <utility>

#include "decoding/loop.h"

namespace medusa {

struct Session::Run {
    const GenerateParams& params;
    const OnStep& on_step;
    const StopPoll& poll;
    Generation& out;
    std::unique_ptr<Chain> chain;
    TextStream text;
    LoopWatch loops{};
    StopPoll stop{};                  // the poll, where there is one
    Token root = 0;                   // emitted, not decoded yet
    GrammarChain* grammar = nullptr;  // `chain`, where there is a grammar
    int emitted_state = 0;            // its state behind the emitted tokens
    int hidden_row = 0;               // row of the newest decode that the root was drawn from
    uint64_t emitted = 0;             // tokens drawn, the index of the next random number
    Stopwatch since_start{};
};

const char* stop_reason_name(StopReason reason) {
    constexpr const char* names[] = {"none", "eos", "stop", "length", "context_full", "cancelled", "loop"};
    return names[static_cast<size_t>(reason)];
}

Session::Session(std::unique_ptr<Target> target, std::unique_ptr<Drafter> drafter,
                 std::shared_ptr<const Vocabulary> vocabulary, MakeChain make_chain, Tree tree,
                 std::unique_ptr<StepPolicy> policy, const TreeBounds& most)
    : target_(std::move(target)),
      drafter_(std::move(drafter)),
      vocabulary_(std::move(vocabulary)),
      make_chain_(std::move(make_chain)),
      tree_(drafter_ ? std::move(tree) : Tree()),
      grammar_drafts_(*vocabulary_, most),
      policy_(std::move(policy)) {}

namespace {

AnswerFacts answer_facts(const SamplingParams& sampling, const AcceptParams& accept) {
    AnswerFacts facts;
    facts.greedy = sampling.is_greedy() && accept.kind == AcceptKind::greedy;
    facts.bare_logits = !sampling.changes_logits();
    const bool whole = accept.kind == AcceptKind::nucleus || (accept.kind == AcceptKind::typical && accept.model_alone);
    const bool few = sampling.is_greedy() || (sampling.top_k > 0 && sampling.top_k <= most_ranked);
    facts.few_ranks = few && !whole;
    return facts;
}

}  // namespace

std::string Session::host_reason(const SamplingParams& sampling, const AcceptParams& accept) const {
    return medusa::host_reason(facts_, answer_facts(sampling, accept));
}

void Session::reset() {
    target_->truncate(0);
    keep_committed();
}

void Session::save(StateWriter& out) {
    target_->save(out);
    if (drafter_) drafter_->save(out);
}

void Session::restore(std::span<const Token> cached, StateReader in, bool drafts) {
    if (drafter_) drafter_->rolled_back(0, 0);
    bool taken = false;
    try {
        taken = cached.size() < static_cast<size_t>(context_size()) && target_->restore(in) &&
                target_->position() == static_cast<int>(cached.size());
    } catch (const Error&) {
    }
    if (!taken) {
        reset();
        throw Error("a saved cache does not fit this model, context or text");
    }
    cached_.assign(cached.begin(), cached.end());
    if (!drafter_ || !drafts) return;
    try {
        drafter_->restore(in);
    } catch (const Error&) {
        drafter_->rolled_back(0, 0);
    }
}

// After a failed or cancelled decode the cache may hold less than was asked for.
void Session::keep_committed() {
    cached_.resize(target_->position());
    if (drafter_) drafter_->rolled_back(target_->position(), target_->position());
}

void Session::check(std::span<const Token> prompt, const GenerateParams& params) const {
    if (prompt.empty()) throw Error("the prompt is empty: give some text");
    if (static_cast<int>(prompt.size()) >= context_size()) {
        throw Error("the prompt has " + std::to_string(prompt.size()) + " tokens, the context holds " +
                        std::to_string(context_size()),
                    "shorten it or raise {ctx_size}");
    }
    for (const Token token : prompt) {
        if (token < 0 || token >= target_->vocab_size()) {
            throw Error("prompt token " + std::to_string(token) + " is not in the vocabulary");
        }
    }
    if (!params.grammar) return;
    const AcceptKind kind = params.accept.kind;
    if (kind == AcceptKind::nucleus || kind == AcceptKind::synthetic || params.accept.model_alone) {
        throw Error("this acceptance rule looks at the model alone, and so past the grammar: choose another one");
    }
    if (params.ignore_eos) throw Error("a grammar says where an answer ends: leave ignore_eos out");
}

// The answer follows the grammar: its chain sees no other tokens.
void Session::constrain(Run& run, std::span<const Token> prompt) {
    const auto& grammar = run.params.grammar;
    if (!grammar) return;
    // The states of earlier answers are let go before they could take the room that this one needs.
    if (!grammar_ || grammar_->grammar() != grammar || grammar_->is_half_full()) {
        grammar_ = std::make_shared<TokenGrammar>(grammar, vocabulary_->trie(target_->vocab_size()));
        grammar_drafts_.forget();
    }
    auto chain = std::make_unique<GrammarChain>(std::move(run.chain), grammar_, run.params.sampling);
    if (!chain->begin(prompt.last(std::min(prompt.size(), static_cast<size_t>(run.params.written))))) {
        throw Error("the text so far does not follow the grammar, or is all of it: leave the grammar out to go on");
    }
    run.grammar = chain.get();
    run.emitted_state = chain->state();
    run.chain = std::move(chain);
}

const Generation& Session::generate(std::span<const Token> prompt, const GenerateParams& params, const OnStep& on_step,
                                    const StopPoll& user_poll, const OnPrompt& on_prompt) {
    check(prompt, params);
    const AnswerFacts facts = answer_facts(params.sampling, params.accept);
    // Rows of logits stay on a device whose graph accepts drafts.
    const bool on_host = params.logprobs >= 0 || params.grammar || !medusa::host_reason(facts_, facts).empty();
    graph_ = target_->in_graph();
    if (graph_) graph_->take_way(on_host ? StepWay::host : facts.greedy ? StepWay::greedy : StepWay::ranked);
    last_.emplace();
    Run run{params, on_step, user_poll, *last_, make_chain_(params.sampling, prompt), TextStream(params.stop)};
    run.stop = [&] { return user_poll && user_poll(); };
    constrain(run, prompt);
    run.out.prompt_tokens = static_cast<int>(prompt.size());
    run.out.accept = params.accept.kind;
    run.out.counters.accepted_at_depth.assign(tree_.depth(), 0);
    // The watchdog judges the tree's drafter; prompt lookup weighs its own cost.
    policy_->begin_generation(params.watchdog && drafter_ && tree_.size() > 1, graph_ && graph_->pads());
    if (params.max_tokens == 0) {
        run.out.stop_reason = StopReason::length;
        return *last_;
    }
    try {
        if (prefill(prompt, run, on_prompt)) {
            while (run.out.stop_reason == StopReason::none && may_step(run)) step(run);
        }
    } catch (const BadLogits& error) {
        give_up(run);
        throw Error(std::string(error.what()) + " at token " + std::to_string(prompt.size() + run.out.tokens.size()) +
                    " of the text: the model file may be damaged, or its numbers too large for an F16 cache");
    } catch (...) {
        give_up(run);
        throw;
    }
    // Text held back because it might have become a stop string or a whole character.
    const std::string rest = run.text.finish();
    if (!rest.empty()) {
        run.out.text += rest;
        if (on_step) on_step({{no_token, rest, false}});
    }
    return *last_;
}

// Ends an answer that failed; what it has produced so far stays.
void Session::give_up(Run& run) {
    target_->discard();
    keep_committed();
    run.out.stop_reason = StopReason::cancelled;
    run.out.text += run.text.finish();
}

bool Session::prefill(std::span<const Token> prompt, Run& run, const OnPrompt& on_prompt) {
    const auto mismatch = std::mismatch(cached_.begin(), cached_.end(), prompt.begin(), prompt.end() - 1).first;
    const auto same = static_cast<int>(mismatch - cached_.begin());
    const int reused = target_->truncate(drafter_ ? drafter_->resumes_at(same) : same);
    if (drafter_) drafter_->rolled_back(reused, same);
    cached_.assign(prompt.begin(), prompt.end());
    run.out.reused_tokens = reused;
    DecodeStatus status;
    try {
        OnState on_state;
        if (drafter_ && drafter_->needs().all_states) {
            on_state = [&](int position, std::span<const float> state) {
                drafter_->committed(position, cached_[position], state);
            };
        }
        int told = -1;
        // Polled before each piece, and while one is computed, when the position does not move.
        const StopPoll stop = [&] {
            if (on_prompt && std::exchange(told, target_->position()) != target_->position()) {
                on_prompt(target_->position() - reused, static_cast<int>(prompt.size()) - reused);
            }
            return run.stop();
        };
        status = target_->prefill(prompt.subspan(reused), stop, on_state);
    } catch (...) {
        keep_committed();
        throw;
    }
    keep_committed();
    run.out.counters.prompt_ms = run.since_start.elapsed_ms();
    if (status != DecodeStatus::ok) {
        stop_at(status, run);
        return false;
    }
    if (drafter_) drafter_->begin(prompt);
    if (drafter_ && drafter_->needs().hidden && !drafter_->needs().all_states) {
        drafter_->committed(target_->position() - 1, prompt.back(), target_->hidden(0));
    }
    run.root = first_root(run);
    run.out.counters.first_token_ms = run.since_start.elapsed_ms();
    constexpr int row = 0;
    emit(run, {&run.root, 1}, {&row, 1});
    return true;
}

std::optional<GreedyStep> Session::greedy_step() const {
    return graph_ ? graph_->greedy_step() : std::nullopt;
}

// Draws the token after the prompt.
Token Session::first_root(Run& run) {
    if (const auto found = greedy_step()) return found->next;
    return pick(*target_, 0, *run.chain, run.params.accept, run.params.sampling, run.emitted);
}

void Session::stop_at(DecodeStatus status, Run& run) {
    run.out.stop_reason = status == DecodeStatus::cancelled ? StopReason::cancelled : StopReason::context_full;
}

bool Session::may_step(Run& run) {
    if (run.stop()) {
        run.out.stop_reason = StopReason::cancelled;
    } else if (target_->position() >= context_size()) {
        run.out.stop_reason = StopReason::context_full;
    }
    return run.out.stop_reason == StopReason::none;
}

// The session's tree, cut to the free cells.
const Tree& Session::shape_for(int room) {
    if (tree_.size() <= room) return tree_;
    fitted_ = tree_.clipped(tree_.depth(), tree_.max_rank() + 1, std::max(room, 1));
    return fitted_;
}

bool Session::draft(Run& run, bool speculative) {
    draft_.set_root(run.root);
    const int room = context_size() - target_->position();
    if (!drafter_ || room <= 1) return true;
    if (!run.out.drafts_ended.empty()) return false;
    // Where the grammar spells out what comes, it drafts more than the drafter could.
    const bool spelled_out =
        run.grammar && grammar_drafts_.spelled_out(run.grammar->grammar(), run.grammar->state(), run.root);
    cached_.push_back(run.root);
    const auto hidden = drafter_->needs().hidden ? target_->hidden(run.hidden_row) : std::span<const float>();
    const SamplingParams& sampling = run.params.sampling;
    Drawing drawing{sampling, StepRandom(sampling.seed, run.emitted, StepRandom::Purpose::drafts)};
    const bool draws = run.params.accept.kind == AcceptKind::rejection && !sampling.is_greedy();
    const Allows allows = [&](std::span<const Token> path, Token token) {
        return GrammarDrafts::allows(run.grammar->grammar(), run.grammar->state(), path.subspan(1), token);
    };
    DraftInput input{cached_, hidden, room, shape_for(room)};
    input.plain = !speculative || spelled_out;
    input.drawing = draws ? &drawing : nullptr;
    input.row = run.hidden_row;
    input.allows = run.grammar && !draws ? &allows : nullptr;
    input.rests = !speculative;
    try {
        drafter_->draft(input, draft_);
    } catch (const DraftsEnd& why) {
        run.out.drafts_ended = why.what();
        draft_.set_root(run.root);
    }
    cached_.pop_back();
    if (run.grammar) grammar_drafts_.shape(run.grammar->grammar(), run.grammar->state(), room, draft_);
    return run.out.drafts_ended.empty();
}

// false: the generation has to end.
bool Session::verify(Run& run) {
    const DecodeStatus status = target_->verify(*draft_.tree, draft_.tokens, run.stop);
    if (status == DecodeStatus::ok) return true;
    keep_committed();
    stop_at(status, run);
    return false;
}

Accepted Session::accept(Run& run) {
    if (const auto found = greedy_step()) return {draft_.tree->path(found->node), found->next};
    return accept_draft(*target_, draft_, *run.chain, run.params.accept, run.params.sampling, run.emitted);
}

// The tokens that the step emits: the accepted drafts and the next root.
std::vector<Token> Session::commit(const Accepted& accepted) {
    if (drafter_ && drafter_->needs().rows) {
        drafter_->verified({cached_, draft_, accepted.path, accepted.next_root,
                            [this](int node) { return target_->logits(node); },
                            [this](int node) { return graph_ ? graph_->likeliest(node) : Likeliest(); }});
    }
    target_->commit(*draft_.tree, accepted.path);
    std::vector<Token> emitted;
    const bool hidden = drafter_ && drafter_->needs().hidden;
    for (const int node : accepted.path) {
        if (hidden) drafter_->committed(static_cast<int>(cached_.size()), draft_.tokens[node], target_->hidden(node));
        cached_.push_back(draft_.tokens[node]);
        if (node != 0) emitted.push_back(draft_.tokens[node]);
    }
    emitted.push_back(accepted.next_root);
    return emitted;
}

void Session::step(Run& run) {
    Counters& counters = run.out.counters;
    const Stopwatch since_begin;
    Stopwatch watch;
    const bool wanted = policy_->speculate();
    const bool speculative = draft(run, wanted) && wanted;
    const double draft_ms = watch.lap();

    const bool verified = verify(run);
    const double verify_ms = watch.lap();
    counters.draft_ms += draft_ms;
    counters.verify_ms += verify_ms;
    if (!verified) return;

    const Accepted accepted = accept(run);
    counters.accept_ms += watch.lap();

    const std::vector<Token> emitted = commit(accepted);
    counters.commit_ms += watch.lap();

    const Tree& tree = *draft_.tree;
    const ThreadUse use = target_->thread_use();
    policy_->report({speculative, tree.size(), tree.leaf_count(), static_cast<int>(accepted.path.size()), draft_ms,
                     verify_ms, since_begin.elapsed_ms(), use.threads, use.repeated});
    counters.count_step(tree, accepted.path, speculative);
    counters.count_threads(use);
    run.hidden_row = accepted.path.back();
    run.root = accepted.next_root;
    run.out.parents.push_back(tree.parents());
    run.out.drafts.push_back(draft_.tokens);
    run.out.paths.push_back(accepted.path);
    emit(run, emitted, accepted.path);
    counters.other_ms += watch.lap();
}

void Counters::count_step(const Tree& tree, const std::vector<int>& path, bool speculative) {
    ++steps;
    if (speculative || tree.size() > 1) {
        committed += static_cast<int64_t>(path.size());
    } else {
        ++plain_steps;
    }
    tree_nodes = std::max(tree_nodes, tree.size());
    const size_t depth = tree.depth();
    if (accepted_at_depth.size() < depth) accepted_at_depth.resize(depth, 0);
    for (size_t at = 0; at + 1 < path.size(); ++at) ++accepted_at_depth[at];
}

void Counters::count_threads(const ThreadUse& use) {
    Threaded& same = by_threads[use.threads];
    ++same.steps;
    same.reason = use.reason;
    most_threads = use.most;
    if (use.repeated) ++repeated;
}

double Counters::tokens_per_step() const {
    return drafting_steps() > 0 ? static_cast<double>(committed) / static_cast<double>(drafting_steps()) : 0.0;
}

std::vector<double> Counters::acceptance_per_depth() const {
    std::vector<double> out;
    for (const int64_t count : accepted_at_depth) {
        out.push_back(drafting_steps() > 0 ? static_cast<double>(count) / static_cast<double>(drafting_steps()) : 0.0);
    }
    return out;
}

const char* Counters::thread_reason() const {
    int64_t most_steps = 0;
    const char* reason = "";
    for (const auto& [threads, ran] : by_threads) {
        if (ran.steps >= most_steps) most_steps = ran.steps, reason = ran.reason;
    }
    return reason;
}

double Generation::tokens_per_second() const {
    const Counters& c = counters;
    const double ms = c.draft_ms + c.verify_ms + c.accept_ms + c.commit_ms + c.other_ms;
    const auto decoded = static_cast<double>(tokens.empty() ? 0 : tokens.size() - 1);  // the first is the prompt's
    return ms > 0 ? 1000.0 * decoded / ms : 0.0;
}

double Generation::prompt_tokens_per_second() const {
    const double decoded = prompt_tokens - reused_tokens;
    return counters.prompt_ms > 0 ? 1000.0 * decoded / counters.prompt_ms : 0.0;
}

// rows: of the newest decode; each token follows from its row.
void Session::emit(Run& run, std::span<const Token> tokens, std::span<const int> rows) {
    run.emitted += tokens.size();
    Generation& out = run.out;
    std::vector<Piece> pieces;
    for (size_t i = 0; i < tokens.size() && out.stop_reason == StopReason::none; ++i) {
        const Token token = tokens[i];
        if (vocabulary_->is_end_of_generation(token) && !run.params.ignore_eos) {
            out.stop_reason = StopReason::eos;
            break;
        }
        const bool drafted = i + 1 < tokens.size();  // the last one is the new root
        pieces.push_back({token, run.text.push(vocabulary_->piece(token)), drafted});
        if (run.params.logprobs >= 0) {
            pieces.back().chances = chances_of(target_->logits(rows[i]), token, run.params.logprobs);
        }
        out.tokens.push_back(token);
        if (run.grammar) run.emitted_state = run.grammar->grammar().after(run.emitted_state, token);
        if (run.text.stopped()) {
            out.stop_reason = StopReason::stop;
        } else if (run.grammar && run.grammar->grammar().is_complete(run.emitted_state)) {
            out.stop_reason = StopReason::eos;
        } else if (run.params.max_tokens > 0 && static_cast<int>(out.tokens.size()) >= run.params.max_tokens) {
            out.stop_reason = StopReason::length;
        } else if (run.params.stop_loops && (out.loop_tokens = run.loops.push(out.tokens)) > 0) {
            out.stop_reason = StopReason::loop;
        }
    }
    for (const Piece& piece : pieces) out.text += piece.text;
    if (run.on_step && !pieces.empty()) run.on_step(pieces);
}

}  // namespace medusa
