// Trees that are grown anew in each step, by what the heads say of this very position.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "drafting/draft_cost.h"
#include "drafting/head_calibration.h"
#include "drafting/level_source.h"

namespace medusa {

// By Origin.
using Calibrations = std::array<HeadCalibration, origins>;

struct DynamicTreeParams {
    int max_nodes = 32;                   // root included
    int ranks = 8;                        // children that a node is given at most
    int width = 8;                        // nodes of a level that are given children
    int proposal_ranks = proposal_width;  // tokens that children are drawn from
};

// Best-first over the product of calibrated probabilities along each path, one level of the source at a time; the tree
// holds the likeliest nodes, as many as bring the most expected tokens over what they cost.
//
// Where tokens are drawn, the children of a level are settled for good before any of them is drawn, by the ranked
// probabilities of that level and by what deeper ones have been worth on average (see Draft).
class DynamicTree {
  public:
    DynamicTree(int depth, const DynamicTreeParams& params);

    // Fills `out` with a tree below the root, which ends input.context; the root alone where no node pays. input.chain
    // takes part, as deep as it is, but where tokens are drawn. The source's step has begun. out.tree stays valid until
    // the next call. `cost` is told what the levels took, but where they are `free`: then their time is left out of
    // account. Returns the tokens that the levels are expected to bring more than the chain alone, or a plain step,
    // would in the same time.
    double grow(LevelSource& source, const DraftInput& input, const Calibrations& calibrations, DraftCost& cost,
                Draft& out, bool free = false);
    // `came`: the tokens that followed the root of the newest tree, as far as they are known. Candidates count whether
    // they were drafted or not.
    void learn(std::span<const Token> came, Calibrations& calibrations);
    // Nothing is known of what follows the newest tree.
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
        float q;   // as the head says
        double p;  // that the whole path is right
        int node;  // in the tree
    };
    void begin_chain(std::span<const Guess> chain);
    bool choose_frontier(const LevelSource& source, int depth, Token root, const DraftCost& cost, bool free);
    void path_of(int candidate, int depth, Token root, std::span<Token> out) const;
    bool join_chain(int depth, const Candidate& found);
    void expand(LevelSource& source, int depth, Token root, const Calibrations& calibrations, bool draws);
    struct Size {
        int nodes = 1;
        double gain = 0;  // expected tokens over those of the root alone, less what the nodes' time is worth
    };
    // Of the trees with the first `settled` candidates and any others.
    Size choose_size(int room, const DraftCost& cost, size_t settled);
    Size settled_size(const DraftCost& cost);
    size_t settle(int depth, size_t settled, int room, const DraftCost& cost, Drawing& drawing);
    void foresee(int depth, size_t from, double node_worth);
    void draw_row(size_t row, const std::vector<Candidate>& chosen, Drawing& drawing);
    void build(int size, Token root, Draft& out);

    int depth_;
    DynamicTreeParams params_;
    std::vector<Candidate> pool_;  // first the chain's, one below the other
    size_t chain_ = 0;             // so many
    std::vector<Candidate>
        ranked_;                 // where tokens are drawn, and the pool is the tree: what the levels found likeliest
    std::vector<int> frontier_;  // candidates of the newest level that get children, the likeliest first
    std::vector<int> order_;     // the pool by probability
    // By depth and rank: what a child was worth, on average. best_share_: the likeliest, at first taken for sure.
    std::vector<std::vector<double>> shares_;
    std::vector<double> best_share_;
    std::vector<Token> paths_;
    LevelDrafts drafts_;
    std::vector<Proposal> proposals_;  // of the root, then of the pool
    std::vector<int> parents_;
    Tree tree_;
};

}  // namespace medusa
