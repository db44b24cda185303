// Prompt lookup: text that occurred before is likely to go on as it did then.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/common.h"
#include "decoding/drafter.h"
#include "drafting/draft_cost.h"

namespace medusa {

// The last `length` tokens also stand before tokens()[next]. length 0: no match.
struct LookupMatch {
    int length = 0;
    int next = 0;
};

// The longest suffix that occurred before, updated token by token: one table entry per suffix length, no rescan.
class LookupIndex {
  public:
    // Finds matches of min_length..max_length tokens.
    LookupIndex(int min_length, int max_length);

    void append(Token token);
    void clear();
    std::span<const Token> tokens() const { return tokens_; }
    // The longest match; among equally long ones, the most recent.
    LookupMatch match() const { return match_; }
    // The `count` tokens that followed the match; a match that overlaps itself goes on periodically.
    void continuation(int count, std::vector<Token>& out) const;

  private:
    bool same_suffix(int end, int length) const;

    int min_length_, max_length_;
    std::vector<Token> tokens_;
    std::unordered_map<uint64_t, int> ends_;  // hash of an n-gram and its length -> where it last ended
    LookupMatch match_;
};

// How often the token after a match came, by the match's length: a moving average that starts from a prior.
class LookupAccuracy {
  public:
    LookupAccuracy(int min_length, int max_length);

    void record(int length, bool came);
    // Lengths above the largest count as the largest.
    float probability(int length) const;

  private:
    struct Counts {
        double came, tried;
    };
    size_t slot(int length) const;

    int min_length_;
    std::vector<Counts> counts_;
};

// Prompt lookup as a drafter, alone or on top of another one.
struct LookupParams {
    int min_length = 2;
    int max_length = 8;
    bool chains_only = false;  // the whole draft is one path of at most max_nodes
    int max_nodes = 15;        // most nodes from one lookup: with the root, two tiles of eight columns for the kernels
    int total_nodes = Tree::max_size;  // of a step, root included
};

// Drafts what followed the longest match, as a chain that is as long as it pays; an `inner` drafter's nodes and the
// chain become one tree, in which equal tokens are one node. An inner drafter that can weigh the chain along with its
// own nodes keeps the likeliest of that tree. Where the chain alone promises more tokens per time than the inner
// drafter has yielded, the inner one is not asked. Learns from every token, drafted or not, whether the match before it
// was right.
class LookupDrafter final : public Drafter {
  public:
    // inner: may be null. cost: what this session's steps cost.
    LookupDrafter(std::unique_ptr<Drafter> inner, const LookupParams& params, std::shared_ptr<const DraftCost> cost);

    // Bounds on the tree that verifies the largest draft on top of an inner drafter's.
    static TreeBounds bounds(const TreeBounds& inner, const LookupParams& params);

    DrafterNeeds needs() const override { return inner_ ? inner_->needs() : DrafterNeeds{}; }
    void begin(std::span<const Token> prompt) override;
    void committed(int position, Token token, std::span<const float> state) override {
        if (inner_) inner_->committed(position, token, state);
    }
    int resumes_at(int same) const override { return inner_ ? inner_->resumes_at(same) : same; }
    void rolled_back(int position, int same) override {
        if (inner_) inner_->rolled_back(position, same);
    }
    void verified(const Verified& step) override {
        if (inner_) inner_->verified(step);
    }
    // Its index is rebuilt at the beginning of an answer.
    void save(StateWriter& out) override {
        if (inner_) inner_->save(out);
    }
    void restore(StateReader& in) override {
        if (inner_) inner_->restore(in);
    }
    void draft(const DraftInput& input, Draft& out) override;

  private:
    void append(Token token, bool learn);
    // How many nodes of a chain pay, and the step's expected tokens with them, per time of a plain step.
    struct Plan {
        int length = 0;
        double rate = 1;
    };
    // room: for all nodes of the step.
    Plan plan_chain(int inner_size, int room) const;
    bool chain_beats_inner(int room) const;
    void learn_rate(size_t tokens);
    void draft_as_one(const DraftInput& input, int room, Draft& out);
    void graft(Draft& out);
    void join_chain(Draft& out);

    std::unique_ptr<Drafter> inner_;
    LookupParams params_;
    LookupIndex index_;
    LookupAccuracy accuracy_;
    std::shared_ptr<const DraftCost> cost_;
    int inner_size_ = 1;                           // of the newest draft, root included
    bool inner_only_ = false;                      // the newest step drafted only the inner drafter's nodes
    double inner_tokens_ = 0, inner_step_ms_ = 0;  // of such steps; old ones fade
    int rate_threads_ = 0;                         // threads that ran them
    std::vector<Token> chain_;
    std::vector<Guess> guesses_;  // the chain, with what is known about it
    std::vector<Tree> chains_;    // [n]: root and a chain of n nodes
    Tree joined_;
};

}  // namespace medusa
