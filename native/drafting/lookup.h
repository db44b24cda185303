// Prompt lookup: text that was there before is likely to go on as it did then.
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

// The longest suffix that occurred before, kept up to date token by token: one table entry per suffix length, no
// rescan.
class LookupIndex {
  public:
    // Matches of min_length..max_length tokens are found.
    LookupIndex(int min_length, int max_length);

    void append(Token token);
    void clear();
    std::span<const Token> tokens() const { return tokens_; }
    // The longest match; among equally long ones the most recent.
    LookupMatch match() const { return match_; }
    // What followed the match, `count` tokens; a match that reaches into itself goes on periodically.
    void continuation(int count, std::vector<Token>& out) const;

  private:
    bool same_suffix(int end, int length) const;

    int min_length_, max_length_;
    std::vector<Token> tokens_;
    std::unordered_map<uint64_t, int> ends_;  // hash of an n-gram and its length -> where it last ended
    LookupMatch match_;
};

// How often the token behind a match came, by the match's length: a moving average that starts from a prior.
class LookupAccuracy {
  public:
    LookupAccuracy(int min_length, int max_length);

    void record(int length, bool came);
    // Lengths above the largest are taken for it.
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
    bool chains_only = false;  // the whole draft is one path, of at most max_nodes
    int max_nodes = 15;        // most nodes of one lookup: with the root, two tiles of eight columns for the kernels
    int total_nodes = Tree::max_size;  // of a step, root included
};

// Drafts what followed the longest match, as a chain that is as long as it pays; an `inner` drafter's nodes and the
// chain become one tree, in which equal tokens are one node, and of which an inner drafter that can weigh the chain
// beside its own nodes keeps the likeliest. Where the chain alone promises more tokens per time than
// the inner drafter has brought, that one is not asked. It learns from every token whether the match before it was
// right, drafted or not.
class LookupDrafter final : public Drafter {
  public:
    // inner: may be null. cost: what this session's steps cost.
    LookupDrafter(std::unique_ptr<Drafter> inner, const LookupParams& params, std::shared_ptr<const DraftCost> cost);

    // The tree that verifies the largest draft on top of an inner one's stays within this.
    static TreeBounds bounds(const TreeBounds& inner, const LookupParams& params);

    DrafterNeeds needs() const override { return inner_ ? inner_->needs() : DrafterNeeds{}; }
    void begin(std::span<const Token> prompt) override;
    void committed(int position, std::span<const float> state) override {
        if (inner_) inner_->committed(position, state);
    }
    void rolled_back(int position) override {
        if (inner_) inner_->rolled_back(position);
    }
    void verified(const Verified& step) override {
        if (inner_) inner_->verified(step);
    }
    // Its index is made anew at the beginning of an answer.
    void save(StateWriter& out) override {
        if (inner_) inner_->save(out);
    }
    void restore(StateReader& in) override {
        if (inner_) inner_->restore(in);
    }
    void draft(const DraftInput& input, Draft& out) override;

  private:
    void append(Token token, bool learn);
    // How many nodes of a chain pay, and with them the expected tokens of the step per time of a plain one.
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
    bool inner_only_ = false;                      // the newest step drafted nothing but the inner drafter's nodes
    double inner_tokens_ = 0, inner_step_ms_ = 0;  // of such steps, old ones fading
    int rate_threads_ = 0;                         // that ran them
    std::vector<Token> chain_;
    std::vector<Guess> guesses_;  // the chain, with what is known of it
    std::vector<Tree> chains_;    // [n]: root and a chain of n nodes
    Tree joined_;
};

}  // namespace medusa
