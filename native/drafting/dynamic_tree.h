// Trees grown anew in each step, from what the heads say at this very position.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "drafting/draft_cost.h"
#include "drafting/level_source.h"

namespace medusa {

// Maps the probability that a draft head gives a token to how often such a token comes.
//
// One ascending map per depth, over bins of the log-odds of the head's own probability. A bin counts, with old records
// fading, the tokens whose parent was right, and how many of them came; pooling bins keeps the map ascending.
class HeadCalibration {
  public:
    static constexpr int bins = 24;
    using Table = std::vector<std::vector<float>>;  // [depth - 1][bin]: probability

    // Without a table, heads are taken at their word until records say otherwise.
    explicit HeadCalibration(int depth, const Table& known = {});

    // q: the head's probability of a token at `depth` (from 1) whose path was right up to there.
    void record(int depth, float q, bool came);
    // Above 0, below 1, ascending in q.
    float probability(int depth, float q) const { return map_[depth - 1][bin_of(q)]; }
    const Table& table() const { return map_; }

  private:
    struct Counts {
        double came, tried;
    };
    static int bin_of(float q);
    void pool(int depth);

    std::vector<std::vector<Counts>> counts_;
    Table map_;
};

// By Origin.
using Calibrations = std::array<HeadCalibration, origins>;

struct DynamicTreeParams {
    int max_nodes = 32;                   // root included
    int ranks = 8;                        // most children a node is given
    int width = 8;                        // nodes in a level that are given children
    int proposal_ranks = proposal_width;  // tokens from which children are drawn
};

// Best-first over the product of calibrated probabilities along each path, one level of the source at a time; the tree
// holds the likeliest nodes, as many as gain the most expected tokens over their cost.
//
// Where tokens are drawn, the children of a level are settled for good before any of them is drawn, by the ranked
// probabilities of that level and by what deeper levels have been worth on average (see Draft).
class DynamicTree {
  public:
    DynamicTree(int depth, const DynamicTreeParams& params);

    // Fills `out` with a tree below the root, which ends input.context; the root alone where no node pays. input.chain
    // takes part at full depth, except where tokens are drawn. The source's step has begun. out.tree stays valid until
    // the next call. `cost` records the time of the levels, unless they are `free`: then that time is ignored. Returns
    // how many more tokens the levels are expected to yield than the chain alone, or a plain step, in the same time.
    double grow(LevelSource& source, const DraftInput& input, const Calibrations& calibrations, DraftCost& cost,
                Draft& out, bool free = false);
    // `came`: the tokens known to have followed the root of the newest tree. Candidates count whether or not they were
    // drafted.
    void learn(std::span<const Token> came, Calibrations& calibrations);
    // Nothing is known about what follows the newest tree.
    void forget() {
        pool_.clear();
        chain_ = 0;
        ranked_.clear();
    }

  private:
    struct Candidate {
        Token token;
        Origin origin;
        bool drawn;
        int parent;  // index in the pool, -1: the root
        int depth;
        float q;   // as the head gives it
        double p;  // that the whole path is right
        int node;  // in the tree
    };
    void begin_chain(const DraftInput& input);
    bool choose_frontier(const LevelSource& source, int depth, Token root, const DraftCost& cost, bool free);
    void path_of(int candidate, int depth, Token root, std::span<Token> out) const;
    bool join_chain(int depth, const Candidate& found);
    void expand(LevelSource& source, int depth, const DraftInput& input, const Calibrations& calibrations);
    void drop_forbidden(size_t row, std::span<const Token> path, const Allows& allows);
    struct Size {
        int nodes = 1;
        double gain = 0;  // expected tokens beyond those of the root alone, less what the nodes' time is worth
    };
    // Among trees with the first `settled` candidates and any others.
    Size choose_size(int room, const DraftCost& cost, size_t settled);
    Size settled_size(const DraftCost& cost);
    size_t settle(int depth, size_t settled, int room, const DraftCost& cost, Drawing& drawing);
    void foresee(int depth, size_t from, double node_worth);
    void draw_row(size_t row, const std::vector<Candidate>& chosen, Drawing& drawing);
    void build(int size, Token root, Draft& out);

    int depth_;
    DynamicTreeParams params_;
    std::vector<Candidate> pool_;  // first the chain's, one below the other
    size_t chain_ = 0;             // how many of them
    std::vector<Candidate>
        ranked_;                 // where tokens are drawn, and the pool is the tree: what the levels found likeliest
    std::vector<int> frontier_;  // candidates of the newest level that get children, likeliest first
    std::vector<int> order_;     // the pool, sorted by probability
    // By depth and rank: average worth of a child. best_share_: of the likeliest, at first assumed certain.
    std::vector<std::vector<double>> shares_;
    std::vector<double> best_share_;
    std::vector<Token> paths_;
    LevelDrafts drafts_;
    std::vector<Proposal> proposals_;  // of the root, then of the pool
    std::vector<int> parents_;
    Tree tree_;
};

// What is known before the first step; empty: learned from scratch.
struct DynamicTreeStart {
    HeadCalibration::Table calibration{};
    std::vector<std::pair<int, double>> curve{};  // plain steps by number of nodes
    bool learns_cost = true;                      // false: the curve holds throughout, so that runs are repeatable
    int max_nodes = Tree::max_size;               // of a step, root included
};

// Asks the heads less and less often while their drafts do not pay for it. Learns, from the tokens that come and the
// times that steps take, what the heads' probabilities and a tree's nodes are worth.
class DynamicTreeDrafter final : public Drafter {
  public:
    // cost: what this session's steps cost; the drafter adds what its levels take.
    DynamicTreeDrafter(std::unique_ptr<LevelSource> source, const DynamicTreeParams& params,
                       const HeadCalibration::Table& calibration, std::shared_ptr<DraftCost> cost);

    // The most a tree can come to, whatever it is grown from.
    static TreeBounds bounds(const DynamicTreeParams& params) { return {params.max_nodes - 1, params.max_nodes}; }

    DrafterNeeds needs() const override { return source_->needs(); }
    bool joins_chain() const override { return true; }
    void begin(std::span<const Token> prompt) override;
    void committed(int position, Token token, std::span<const float> state) override {
        source_->committed(position, token, state);
    }
    int resumes_at(int same) const override { return source_->resumes_at(same); }
    void rolled_back(int position, int same) override { source_->rolled_back(position, same); }
    void verified(const Verified& step) override { source_->verified(step); }
    void save(StateWriter& out) override { source_->save(out); }
    void restore(StateReader& in) override { source_->restore(in); }
    void draft(const DraftInput& input, Draft& out) override;
    const HeadCalibration::Table& calibration() const { return calibrations_[0].table(); }

  private:
    void note_gain(double tokens, int longest);

    std::unique_ptr<LevelSource> source_;
    Calibrations calibrations_;
    std::shared_ptr<DraftCost> cost_;
    DynamicTree tree_;
    size_t known_ = 0;                          // tokens in the context at whose end the newest tree was grown; 0: none
    double gain_ = 0;                           // tokens per step gained by asking the heads; old steps fade
    int fruitless_ = 0;                         // steps in a row without a gain
    int pause_ = 0, next_pause_ = first_pause;  // steps without asking the heads
    int trial_;                                 // asks before the first pause

    static constexpr double gain_weight = 0.1;
    // Plain steps' worth of time spent on drafts that no clock sees: made ahead, within a pass of the model.
    static constexpr double free_worth = 0.05;
    // A source whose probabilities nothing is known about is asked this often, whether or not they seem to pay.
    static constexpr int first_asks = 16;
    static constexpr int patience = 4, first_pause = 4, longest_pause = 64, longest_free_pause = 16;
};

}  // namespace medusa
