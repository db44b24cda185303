#include "drafting/dynamic_tree.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "base/common.h"

namespace medusa {
namespace {

constexpr float lowest_odds = -6.0f, bin_width = 0.5f;         // of log-odds: 24 bins reach from 1/400 to 399/400
constexpr float lowest_share = 1e-4f, highest_share = 0.999f;  // a child stays less likely than its parent
constexpr double doubted = 1, trusted = 64;                    // weight of the start in records: without, with a table
constexpr double memory = 400;                                 // records in a bin, after which the old ones count half

double centre(int bin) {
    return 1.0 / (1.0 + std::exp(-(lowest_odds + bin_width * (bin + 0.5))));
}

}  // namespace

HeadCalibration::HeadCalibration(int depth, const Table& known) {
    for (int d = 1; d <= depth; ++d) {
        const std::vector<float>* start = static_cast<size_t>(d) <= known.size() ? &known[d - 1] : nullptr;
        if (start && start->size() != bins) {
            throw Error("a calibration has " + std::to_string(bins) + " values a head, not " +
                        std::to_string(start->size()) + ": tune again");
        }
        std::vector<Counts> counts;
        for (int bin = 0; bin < bins; ++bin) {
            const double weight = start ? trusted : doubted;
            counts.push_back({weight * (start ? (*start)[bin] : centre(bin)), weight});
        }
        counts_.push_back(std::move(counts));
        map_.emplace_back(bins);
        pool(d);
    }
}

// Heads that return NaN are never right.
int HeadCalibration::bin_of(float q) {
    if (!(q > 0.0f)) return 0;
    if (q >= 1.0f) return bins - 1;
    return std::clamp(static_cast<int>((std::log(q / (1.0f - q)) - lowest_odds) / bin_width), 0, bins - 1);
}

void HeadCalibration::record(int depth, float q, bool came) {
    Counts& c = counts_[depth - 1][bin_of(q)];
    if (c.tried >= memory) {
        c.came /= 2;
        c.tried /= 2;
    }
    c.came += came ? 1.0 : 0.0;
    c.tried += 1.0;
    pool(depth);
}

// Isotonic regression: neighbouring bins out of order are merged.
void HeadCalibration::pool(int depth) {
    struct Block {
        Counts counts;
        int last;
    };
    Block blocks[bins];
    int count = 0;
    for (int bin = 0; bin < bins; ++bin) {
        blocks[count++] = {counts_[depth - 1][bin], bin};
        while (count > 1) {
            Block& before = blocks[count - 2];
            const Block& newest = blocks[count - 1];
            if (before.counts.came * newest.counts.tried <= newest.counts.came * before.counts.tried) break;
            before.counts.came += newest.counts.came;
            before.counts.tried += newest.counts.tried;
            before.last = newest.last;
            --count;
        }
    }
    int bin = 0;
    for (int i = 0; i < count; ++i) {
        const auto p = static_cast<float>(blocks[i].counts.came / blocks[i].counts.tried);
        for (; bin <= blocks[i].last; ++bin) map_[depth - 1][bin] = std::clamp(p, lowest_share, highest_share);
    }
}

namespace {

constexpr int root_index = -1;
constexpr double share_weight = 0.05;

}  // namespace

DynamicTree::DynamicTree(int depth, const DynamicTreeParams& params)
    : depth_(depth), params_(params), best_share_(depth + 1, 1.0) {
    std::vector<double> shares(params.ranks);
    double share = 1;
    for (double& first : shares) first = share /= 2;
    shares_.assign(depth + 1, shares);
}

double DynamicTree::grow(LevelSource& source, const DraftInput& input, const Calibrations& calibrations,
                         DraftCost& cost, Draft& out, bool free) {
    forget();
    proposals_.clear();
    const Token root = input.context.back();
    Drawing* drawing = input.drawing;
    if (!drawing) begin_chain(input);
    const double chain_gain = chain_ > 0 ? choose_size(input.room, cost, 0).gain : 0;
    double levels_ms = 0;
    size_t settled = 0;
    for (int depth = 1; depth <= depth_; ++depth) {
        if (!choose_frontier(source, depth, root, cost, free)) break;
        const Stopwatch watch;
        expand(source, depth, input, calibrations);
        if (!free) {
            cost.record_level(depth, watch.elapsed_ms());
            levels_ms += cost.level_ms(depth);
        }
        if (!drawing) continue;
        const size_t before = settled;
        settled = settle(depth, before, input.room, cost, *drawing);
        if (settled == before) break;
    }
    const Size size = drawing ? settled_size(cost) : choose_size(input.room, cost, 0);
    build(size.nodes, root, out);
    return size.gain - chain_gain - cost.rate() * levels_ms;
}

void DynamicTree::begin_chain(const DraftInput& input) {
    double reached = 1;
    std::vector<Token> path{input.context.back()};
    for (const Guess& guess : input.chain) {
        if (input.allows && !(*input.allows)(path, guess.token)) break;
        path.push_back(guess.token);
        const int at = static_cast<int>(chain_++);
        reached *= guess.q;
        pool_.push_back(
            {guess.token, Origin::chain, false, at == 0 ? root_index : at - 1, at + 1, guess.q, reached, 0});
    }
}

// Whether a candidate found by a level also stands in the chain: then it is one node, with the probability of the
// likelier of the two.
bool DynamicTree::join_chain(int depth, const Candidate& found) {
    const auto at = static_cast<size_t>(depth) - 1;
    if (at >= chain_) return false;
    Candidate& known = pool_[at];
    if (known.parent != found.parent || known.token != found.token) return false;
    known.origin = found.origin;
    known.q = found.q;
    if (found.p <= known.p) return true;
    const double share = found.p / known.p;
    for (size_t i = at; i < chain_; ++i) pool_[i].p *= share;
    return true;
}

// Whether level `depth` is worth asking for. A node's children can gain no more than its own probability, so nodes that
// would not pay for themselves get none; for the others, the likeliest child is worth its past average.
bool DynamicTree::choose_frontier(const LevelSource& source, int depth, Token root, const DraftCost& cost, bool free) {
    frontier_.clear();
    if (depth == 1) {
        frontier_.push_back(root_index);
        return source.reaches({&root, 1});
    }
    const double node_worth = cost.rate() * cost.node_ms();
    double gain = 0;
    std::vector<Token>& path = paths_;
    path.resize(static_cast<size_t>(depth));
    for (int i = 0; i < static_cast<int>(pool_.size()); ++i) {
        const Candidate& candidate = pool_[i];
        if (candidate.depth != depth - 1 || candidate.p <= node_worth) continue;
        path_of(i, depth, root, path);
        if (!source.reaches(path)) continue;
        frontier_.push_back(i);
        gain += std::max(candidate.p * best_share_[depth] - node_worth, 0.0);
    }
    std::stable_sort(frontier_.begin(), frontier_.end(), [&](int a, int b) { return pool_[a].p > pool_[b].p; });
    if (frontier_.size() > static_cast<size_t>(params_.width)) frontier_.resize(params_.width);
    return gain > (free ? 0 : cost.rate() * cost.level_ms(depth));
}

// The path to a candidate at depth - 1, from the root on.
void DynamicTree::path_of(int candidate, int depth, Token root, std::span<Token> out) const {
    out.front() = root;
    for (int i = depth - 1; i > 0; --i, candidate = pool_[candidate].parent) out[i] = pool_[candidate].token;
}

// Tokens that cannot come take no part, and those that can share what is left.
void DynamicTree::drop_forbidden(size_t row, std::span<const Token> path, const Allows& allows) {
    const size_t begin = row * static_cast<size_t>(drafts_.ranks), end = begin + static_cast<size_t>(drafts_.ranks);
    float forbidden = 0;
    for (size_t i = begin; i < end; ++i) {
        if (allows(path, drafts_.tokens[i])) continue;
        forbidden += drafts_.q[i];
        drafts_.tokens[i] = no_token;
    }
    constexpr float least = 0.02f;
    for (size_t i = begin; i < end; ++i) drafts_.q[i] = std::min(drafts_.q[i] / std::max(1 - forbidden, least), 1.0f);
}

void DynamicTree::expand(LevelSource& source, int depth, const DraftInput& input, const Calibrations& calibrations) {
    const auto length = static_cast<size_t>(depth);
    const Token root = input.context.back();
    paths_.resize(frontier_.size() * length);
    for (size_t row = 0; row < frontier_.size(); ++row) {
        path_of(frontier_[row], depth, root, std::span(paths_).subspan(row * length, length));
    }
    source.level(depth, paths_, input.drawing ? params_.proposal_ranks : params_.ranks, drafts_);
    for (size_t row = 0; row < frontier_.size(); ++row) {
        const int parent = frontier_[row];
        const double reached = parent == root_index ? 1.0 : pool_[parent].p;
        if (input.allows) drop_forbidden(row, std::span(paths_).subspan(row * length, length), *input.allows);
        double best = 0;
        for (int rank = 0; rank < std::min(drafts_.ranks, params_.ranks); ++rank) {
            const size_t i = row * drafts_.ranks + rank;
            if (drafts_.tokens[i] == no_token) continue;
            const Origin origin = drafts_.origin(i);
            const double share = calibrations[static_cast<size_t>(origin)].probability(depth, drafts_.q[i]);
            best = std::max(best, share);
            shares_[depth][rank] += share_weight * (share - shares_[depth][rank]);
            const Candidate found{drafts_.tokens[i], origin, false, parent, depth, drafts_.q[i], reached * share, 0};
            if (!join_chain(depth, found)) pool_.push_back(found);
        }
        best_share_[depth] += share_weight * (best - best_share_[depth]);
    }
}

// How many nodes, root included, gain the most: expected tokens less what their time is worth.
DynamicTree::Size DynamicTree::choose_size(int room, const DraftCost& cost, size_t settled) {
    order_.resize(pool_.size());
    std::iota(order_.begin(), order_.end(), 0);
    // A child is less likely than its parent, so any number of the likeliest candidates form a tree.
    std::stable_sort(order_.begin() + static_cast<std::ptrdiff_t>(settled), order_.end(),
                     [&](int a, int b) { return pool_[a].p > pool_[b].p; });
    const int most = std::min({static_cast<int>(pool_.size()) + 1, room, params_.max_nodes});
    TreeSize size;
    const double plain_worth = 1 - cost.rate() * cost.verify_ms(size);
    double tokens = 1;
    Size best;
    std::vector<bool> has_child(pool_.size() + 1, false);
    for (const int wanted : dynamic_sizes) {
        if (wanted > most) break;
        for (; size.nodes < wanted; ++size.nodes) {
            const Candidate& candidate = pool_[order_[size.nodes - 1]];
            tokens += candidate.p;
            const size_t parent = static_cast<size_t>(candidate.parent + 1);
            // The first child takes over its parent's leaf.
            if (has_child[parent]) ++size.leaves;
            has_child[parent] = true;
        }
        const double gain = tokens - cost.rate() * cost.verify_ms(size) - plain_worth;
        if (wanted <= static_cast<int>(settled)) continue;
        if (gain > best.gain || best.nodes <= static_cast<int>(settled)) best = {wanted, gain};
    }
    return best;
}

void DynamicTree::build(int size, Token root, Draft& out) {
    out.set_root(root);
    if (size == 1) return;
    order_.resize(size - 1);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int a, int b) { return std::pair(pool_[a].depth, a) < std::pair(pool_[b].depth, b); });
    parents_.assign(1, -1);
    for (const int i : order_) {
        Candidate& candidate = pool_[i];
        candidate.node = static_cast<int>(parents_.size());
        parents_.push_back(candidate.parent == root_index ? 0 : pool_[candidate.parent].node);
        out.tokens.push_back(candidate.token);
        out.q.push_back(candidate.q);
        out.drawn.push_back(candidate.drawn);
    }
    if (!proposals_.empty()) {
        out.proposals.resize(parents_.size());
        out.proposals[0] = std::move(proposals_[0]);
        for (const int i : order_) out.proposals[pool_[i].node] = std::move(proposals_[i + 1]);
    }
    tree_ = Tree::from_parents(parents_);
    out.tree = &tree_;
}

void DynamicTree::learn(std::span<const Token> came, Calibrations& calibrations) {
    int parent = root_index;
    for (const Token token : came) {
        for (const Candidate& candidate : ranked_.empty() ? pool_ : ranked_) {
            if (candidate.parent != parent || candidate.origin == Origin::chain) continue;
            calibrations[static_cast<size_t>(candidate.origin)].record(candidate.depth, candidate.q,
                                                                       candidate.token == token);
        }
        const auto right = std::find_if(pool_.begin(), pool_.end(), [&](const Candidate& candidate) {
            return candidate.parent == parent && candidate.token == token;
        });
        if (right == pool_.end()) break;
        parent = static_cast<int>(right - pool_.begin());
    }
    forget();
}

// The pool ends with all candidates of level `depth`, after `settled` nodes. Keeps those that belong to the best tree
// that deeper levels could make of it, and draws their tokens. Returns how many nodes are settled then.
size_t DynamicTree::settle(int depth, size_t settled, int room, const DraftCost& cost, Drawing& drawing) {
    const size_t known = pool_.size();
    const double node_worth = cost.rate() * cost.node_ms();
    for (size_t from = settled, at = depth + 1; at <= static_cast<size_t>(depth_); ++at) {
        const size_t next = pool_.size();
        foresee(static_cast<int>(at), from, node_worth);
        from = next;
    }
    const Size size = choose_size(room, cost, settled);
    std::vector<bool> chosen(pool_.size(), false);
    for (int i = 0; i + 1 < size.nodes; ++i) chosen[order_[i]] = true;
    std::vector<std::vector<Candidate>> rows(frontier_.size());
    for (size_t i = settled; i < known; ++i) {
        if (chosen[i]) rows[(i - settled) / std::min(drafts_.ranks, params_.ranks)].push_back(pool_[i]);
    }
    ranked_.insert(ranked_.end(), pool_.begin() + static_cast<std::ptrdiff_t>(settled),
                   pool_.begin() + static_cast<std::ptrdiff_t>(known));
    pool_.resize(settled);
    proposals_.resize(settled + 1);
    for (size_t row = 0; row < rows.size(); ++row) draw_row(row, rows[row], drawing);
    return pool_.size();
}

// For the tree that holds the whole pool.
DynamicTree::Size DynamicTree::settled_size(const DraftCost& cost) {
    order_.resize(pool_.size());
    std::iota(order_.begin(), order_.end(), 0);
    TreeSize size{static_cast<int>(pool_.size()) + 1, 1};
    double tokens = 1;
    std::vector<bool> has_child(pool_.size() + 1, false);
    for (const Candidate& candidate : pool_) {
        tokens += candidate.p;
        const auto parent = static_cast<size_t>(candidate.parent + 1);
        if (has_child[parent]) ++size.leaves;
        has_child[parent] = true;
    }
    const double plain_worth = 1 - cost.rate() * cost.verify_ms(TreeSize());
    return {size.nodes, tokens - cost.rate() * cost.verify_ms(size) - plain_worth};
}

// Adds children to the candidates from `from` on, as level `depth` has had on average.
void DynamicTree::foresee(int depth, size_t from, double node_worth) {
    for (size_t i = from, end = pool_.size(); i < end; ++i) {
        for (int rank = 0; rank < params_.ranks; ++rank) {
            const double p = pool_[i].p * shares_[depth][rank];
            if (p <= node_worth) break;
            pool_.push_back({0, Origin::heads, false, static_cast<int>(i), depth, 0, p, 0});
        }
    }
}

// The chosen candidates of a row become nodes: recycled ones as they are, the others replaced by as many drawn ones.
void DynamicTree::draw_row(size_t row, const std::vector<Candidate>& chosen, Drawing& drawing) {
    const int parent = frontier_[row];
    std::vector<Token> tokens;
    std::vector<float> q;
    const auto width = static_cast<size_t>(drafts_.ranks);
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
        if (drafts_.origin(i) == Origin::recycled) continue;
        tokens.push_back(drafts_.tokens[i]);
        q.push_back(drafts_.q[i]);
    }
    const auto draws = static_cast<int>(std::count_if(
        chosen.begin(), chosen.end(), [](const Candidate& candidate) { return candidate.origin != Origin::recycled; }));
    Proposal& proposal = proposals_[static_cast<size_t>(parent + 1)];
    proposal = make_proposal(tokens, q, drawing.sampling);
    const auto drawn = draw_distinct(proposal, draws, drawing.random);
    size_t next = 0;
    for (Candidate candidate : chosen) {
        if (candidate.origin != Origin::recycled) {
            candidate.drawn = next < drawn.size();
            // A proposal is a prefix of the tokens: once all of it is drawn, the rest follow.
            candidate.token = candidate.drawn ? drawn[next].token : tokens[next];
            ++next;
        }
        pool_.push_back(candidate);
        proposals_.emplace_back();
    }
}

DynamicTreeDrafter::DynamicTreeDrafter(std::unique_ptr<LevelSource> source, const DynamicTreeParams& params,
                                       const HeadCalibration::Table& calibration, std::shared_ptr<DraftCost> cost)
    : source_(std::move(source)),
      calibrations_{HeadCalibration(source_->depth(), calibration), HeadCalibration(source_->depth()),
                    HeadCalibration(source_->depth(), calibration)},
      cost_(std::move(cost)),
      tree_(source_->depth(), params),
      trial_(calibration.empty() ? first_asks : 0) {}

void DynamicTreeDrafter::begin(std::span<const Token> prompt) {
    source_->prompt(prompt);
    tree_.forget();
    known_ = 0;
}

void DynamicTreeDrafter::draft(const DraftInput& input, Draft& out) {
    if (known_ > 0) tree_.learn(input.context.subspan(known_), calibrations_);
    known_ = input.context.size();
    out.set_root(input.context.back());
    if (input.plain) return;
    if (pause_ > 0) {
        --pause_;
        if (source_->begin_free(input)) {
            tree_.grow(*source_, input, calibrations_, *cost_, out, true);
        }
        return;
    }
    source_->begin(input);
    const bool free = source_->is_free(), asked = source_->reaches(input.context.last(1));
    const double gain = tree_.grow(*source_, input, calibrations_, *cost_, out, free);
    if (asked) free ? note_gain(gain - free_worth, longest_free_pause) : note_gain(gain, longest_pause);
}

void DynamicTreeDrafter::note_gain(double tokens, int longest) {
    gain_ += gain_weight * (tokens - gain_);
    if (trial_ > 0) --trial_;
    if (gain_ > 0) {
        fruitless_ = 0;
        next_pause_ = first_pause;
    } else if (++fruitless_ >= patience && trial_ == 0) {
        pause_ = next_pause_;
        next_pause_ = std::min(2 * next_pause_, longest);
    }
}

}  // namespace medusa
