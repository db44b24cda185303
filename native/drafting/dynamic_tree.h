// Trees that are grown anew in each step, by what the heads say of this very position.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "drafting/draft_cost.h"
#include "drafting/level_source.h"

namespace medusa {

// From what a draft head says of a token to how often such a token comes.
//
// One ascending map per depth, over bins of the log-odds of the head's own probability. A bin counts, with old records
// fading, the tokens whose parent was right, and those of them that came; pooled bins keep the map ascending.
class HeadCalibration {
  public:
    static constexpr int bins = 24;
    using Table = std::vector<std::vector<float>>;  // [depth - 1][bin]: probability

    // Without a table the heads are taken at their word until records say otherwise.
    explicit HeadCalibration(int depth, const Table& known = {});

    // q: the head's probability of a token at `depth` (from 1), whose path was right up to there.
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

// What is known before the first step; empty: learned from scratch.
struct DynamicTreeStart {
    HeadCalibration::Table calibration{};
    std::vector<std::pair<int, double>> curve{};  // plain steps by number of nodes
    bool learns_cost = true;                      // false: the curve holds throughout, so that runs repeat
    int max_nodes = Tree::max_size;               // of a step, root included
};

// Asks the heads less and less often while what they draft does not pay for asking them. Learns, from the tokens that
// come and the times that steps take, what the heads' probabilities and a tree's nodes are worth.
class DynamicTreeDrafter final : public Drafter {
  public:
    // cost: what this session's steps cost; the drafter adds what its levels take.
    DynamicTreeDrafter(std::unique_ptr<LevelSource> source, const DynamicTreeParams& params,
                       const HeadCalibration::Table& calibration, std::shared_ptr<DraftCost> cost);

    // What a tree may come to, whatever it is grown from.
    static TreeBounds bounds(const DynamicTreeParams& params) { return {params.max_nodes - 1, params.max_nodes}; }

    DrafterNeeds needs() const override { return source_->needs(); }
    bool joins_chain() const override { return true; }
    void begin(std::span<const Token> prompt) override;
    void committed(int position, std::span<const float> state) override { source_->committed(position, state); }
    void rolled_back(int position) override { source_->rolled_back(position); }
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
    size_t known_ = 0;   // tokens of the context that the newest tree was grown at the end of; 0: none
    double gain_ = 0;    // tokens that asking the heads gained a step, old steps fading
    int fruitless_ = 0;  // steps in a row without a gain
    int pause_ = 0, next_pause_ = first_pause;  // steps without asking the heads

    static constexpr double gain_weight = 0.1;
    // Plain steps that drafts take which no clock sees: made ahead, within a pass of the model.
    static constexpr double free_worth = 0.05;
    static constexpr int patience = 4, first_pause = 4, longest_pause = 64, longest_free_pause = 16;
};

}  // namespace medusa
