// One conversation: draft -> verify -> accept -> commit until something says stop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decoding/accept.h"
#include "decoding/constraint.h"
#include "decoding/drafter.h"
#include "decoding/in_graph.h"
#include "decoding/step_policy.h"
#include "decoding/target.h"
#include "decoding/text_stream.h"

namespace medusa {

struct GenerateParams {
    int max_tokens = -1;  // < 0: until the context is full
    SamplingParams sampling;
    AcceptParams accept;
    std::vector<std::string> stop;
    bool ignore_eos = false;
    bool stop_loops = false;  // end where the text only repeats itself (LoopWatch)
    int logprobs = -1;        // likeliest tokens to report with each emitted one; 0: only that one; < 0: nothing
    std::shared_ptr<const Grammar> grammar{};  // that the answer follows; null: none
    int written = 0;        // tokens at the end of the prompt that are the answer's beginning to the grammar
    bool watchdog = false;  // may decode plainly where drafts do not pay; when it does so depends on the clock
};

enum class StopReason { none, eos, stop, length, context_full, cancelled, loop };
const char* stop_reason_name(StopReason reason);

// One emitted token and the text that became printable with it. The last piece of a generation may carry only text
// that had been held back, and no_token.
struct Piece {
    Token token;
    std::string text;
    bool drafted;                      // an accepted draft; false: drawn as the next root
    std::optional<Chances> chances{};  // where they were asked for
};

// Counts and times of one generation. A step commits its root and the accepted nodes below it.
struct Counters {
    int64_t steps = 0;
    int64_t plain_steps = 0;                 // those that the watchdog or the drafter's end kept from drafting
    int64_t committed = 0;                   // by the other steps, before any clipping at a stop
    std::vector<int64_t> accepted_at_depth;  // [d]: steps that accepted a node of depth d + 1
    int tree_nodes = 0;                      // with root, maximum over steps
    struct Threaded {
        int64_t steps = 0;
        const char* reason = "";  // of the newest of them (ThreadUse)
    };
    std::map<int, Threaded> by_threads;
    int most_threads = 0;
    int64_t repeated = 0;  // steps given up once and repeated, since other programs ran instead
    double draft_ms = 0, verify_ms = 0, accept_ms = 0, commit_ms = 0, other_ms = 0;
    double prompt_ms = 0, first_token_ms = 0;

    // A step that verified a draft with this tree and accepted the nodes of `path`.
    void count_step(const Tree& tree, const std::vector<int>& path, bool speculative);
    void count_threads(const ThreadUse& use);

    int64_t drafting_steps() const { return steps - plain_steps; }
    // Over those steps; 0 without any. By depth: the share of them that accepted a node there.
    double tokens_per_step() const;
    std::vector<double> acceptance_per_depth() const;
    // For the number of threads that most steps ran with.
    const char* thread_reason() const;
};

struct Generation {
    std::vector<Token> tokens;  // emitted, without an end-of-generation token
    size_t loop_tokens = 0;     // if it ended in a loop: tokens per round
    // For each step: the tree it verified (Tree::parents), its tokens, and the accepted nodes from the root downwards.
    std::vector<std::vector<int>> parents;
    std::vector<std::vector<Token>> drafts;
    std::vector<std::vector<int>> paths;
    std::string text;
    StopReason stop_reason = StopReason::none;
    int prompt_tokens = 0;
    int reused_tokens = 0;  // tokens of the prompt that were already in the cache
    AcceptKind accept = AcceptKind::greedy;
    std::string drafts_ended;  // why the later steps had no drafts; empty: they had
    Counters counters;

    // 0 where nothing was timed.
    double tokens_per_second() const;
    double prompt_tokens_per_second() const;
};

using MakeChain = std::function<std::unique_ptr<Chain>(const SamplingParams&, std::span<const Token> prompt)>;
// Gets the pieces of each step. An exception from it ends the generation and is passed on.
using OnStep = std::function<void(const std::vector<Piece>&)>;
// How many of the tokens that a prompt adds to the cache have been read: called before the first and after each piece
// of them. Must not throw.
using OnPrompt = std::function<void(int done, int total)>;

class Session {
  public:
    // drafter may be null: plain decoding. `tree` must fit the drafter; each step starts from it. `policy` decides
    // whether a step drafts where a generation asks for a watchdog. most: of the trees that the target can verify.
    Session(std::unique_ptr<Target> target, std::unique_ptr<Drafter> drafter,
            std::shared_ptr<const Vocabulary> vocabulary, MakeChain make_chain, Tree tree,
            std::unique_ptr<StepPolicy> policy, const TreeBounds& most);

    // Decodes after `prompt`, reusing its longest cached prefix. An answer that is complete by its grammar ends as
    // `eos`. `poll` is asked at least once per step and per prompt chunk; true cancels. The returned record is also
    // kept in last(), even when OnStep throws.
    const Generation& generate(std::span<const Token> prompt, const GenerateParams& params, const OnStep& on_step,
                               const StopPoll& poll, const OnPrompt& on_prompt = nullptr);
    void reset();
    // The cache of the committed tokens and what the drafter knows about them. Between answers.
    void save(StateWriter& out);
    // Replaces what is there; `cached`: the tokens that were cached then. `drafts`: the drafter is of the same kind and
    // file, too; otherwise it starts anew. Throws Error where the state belongs to another model or context: then
    // nothing is cached.
    void restore(std::span<const Token> cached, StateReader in, bool drafts);
    // Replaces the policy it was made with.
    void set_step_policy(std::unique_ptr<StepPolicy> policy) { policy_ = std::move(policy); }
    // What decides where its steps take place; by default, on the host.
    void set_step_facts(StepFacts facts) { facts_ = std::move(facts); }
    // Why the steps of such an answer take place on the host; empty: in the model's graph.
    std::string host_reason(const SamplingParams& sampling, const AcceptParams& accept) const;

    const Tree& tree() const { return tree_; }
    int context_size() const { return target_->context_size(); }
    const std::vector<Token>& cached_tokens() const { return cached_; }
    const Generation* last() const { return last_ ? &*last_ : nullptr; }
    Target& target() { return *target_; }

  private:
    struct Run;  // what one generate() call carries from step to step

    void check(std::span<const Token> prompt, const GenerateParams& params) const;
    void constrain(Run& run, std::span<const Token> prompt);
    bool prefill(std::span<const Token> prompt, Run& run, const OnPrompt& on_prompt);
    bool may_step(Run& run);
    void step(Run& run);
    // false: without drafts, where the drafter cannot go on.
    bool draft(Run& run, bool speculative);
    bool verify(Run& run);
    Accepted accept(Run& run);
    Token first_root(Run& run);
    std::optional<GreedyStep> greedy_step() const;
    std::vector<Token> commit(const Accepted& accepted);
    void emit(Run& run, std::span<const Token> tokens, std::span<const int> rows);
    void stop_at(DecodeStatus status, Run& run);
    void keep_committed();
    void give_up(Run& run);
    const Tree& shape_for(int room);

    std::unique_ptr<Target> target_;
    GraphSteps* graph_ = nullptr;  // the target's, during an answer
    std::unique_ptr<Drafter> drafter_;
    std::shared_ptr<const Vocabulary> vocabulary_;
    MakeChain make_chain_;
    Tree tree_;
    Tree fitted_;                // tree_ cut to the last free cells of the context
    std::vector<Token> cached_;  // the tokens in the target's cache, in order
    Draft draft_;
    std::shared_ptr<TokenGrammar> grammar_;  // of the newest answer that had one
    GrammarDrafts grammar_drafts_;
    std::unique_ptr<StepPolicy> policy_;
    StepFacts facts_;
    std::optional<Generation> last_;
};

}  // namespace medusa
