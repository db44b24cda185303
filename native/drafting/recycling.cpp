#include "drafting/recycling.h"

#include <algorithm>

#include "decoding/sampler.h"

namespace medusa {
namespace {

constexpr float lead_ends[] = {0.5f, 1.5f, 4.0f};  // in logits: the classes of an entry's lead
// Probabilities to start from, by rank: for chat models of 0.1 to 2 billion parameters; the first rank's by lead.
constexpr double first_rank[RecyclingWorth::kinds][RecyclingTable::leads] = {
    {0.25, 0.35, 0.5, 0.7}, {0.15, 0.2, 0.3, 0.4}, {0.05, 0.05, 0.05, 0.05}};
constexpr double later_rank[RecyclingWorth::kinds] = {0.25, 0.2, 0.05};  // the second rank's; each further one halves
constexpr double prior_weight = 8, memory = 400;  // weight of the start, in records; records after which old ones fade

uint8_t lead_class(float lead) {
    uint8_t found = 0;
    for (const float end : lead_ends) found += lead >= end ? 1 : 0;
    return found;
}

int rank_of(const RecyclingTable::Entry& entry, Token token) {
    const auto at = std::find(entry.tokens.begin(), entry.tokens.end(), token);
    return at == entry.tokens.end() ? -1 : static_cast<int>(at - entry.tokens.begin());
}

}  // namespace

RecyclingTable::RecyclingTable(int vocab_size) : singles_(vocab_size), pairs_(pairs) {
    for (Entry& entry : singles_) entry.tokens[0] = -1;
}

size_t RecyclingTable::slot(Token before, Token token) {
    const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(before)) << 32) | static_cast<uint32_t>(token);
    return (key * 0x9E3779B97F4A7C15ull) >> 48;
}

void RecyclingTable::store(Token before, Token token, const Likeliest& likeliest) {
    const std::vector<Token>& tokens = likeliest.tokens;
    if (tokens.empty()) return;
    Entry entry;
    entry.tokens.fill(-1);
    std::copy_n(tokens.begin(), std::min<size_t>(tokens.size(), width), entry.tokens.begin());
    entry.lead = tokens.size() > 1 ? lead_class(likeliest.lead) : leads - 1;
    singles_[token] = entry;
    if (before >= 0) pairs_[slot(before, token)] = {before, token, entry};
}

void RecyclingTable::store(Token before, Token token, std::span<const float> logits) {
    top_indices(logits, width, largest_);
    Likeliest likeliest{{largest_.begin(), largest_.end()}};
    if (largest_.size() > 1) likeliest.lead = logits[largest_[0]] - logits[largest_[1]];
    store(before, token, likeliest);
}

const RecyclingTable::Entry* RecyclingTable::after(Token token) const {
    return singles_[token].tokens[0] >= 0 ? &singles_[token] : nullptr;
}

const RecyclingTable::Entry* RecyclingTable::after(Token before, Token token) const {
    const Pair& found = pairs_[slot(before, token)];
    return before >= 0 && found.before == before && found.token == token ? &found.entry : nullptr;
}

void RecyclingTable::save(StateWriter& out) const {
    std::vector<Pair> known;
    for (Token token = 0; token < static_cast<Token>(singles_.size()); ++token) {
        if (after(token)) known.push_back({no_token, token, singles_[token]});
    }
    for (const Pair& pair : pairs_) {
        if (pair.token >= 0) known.push_back(pair);
    }
    out.list<Pair>(known);
}

void RecyclingTable::restore(StateReader& in) {
    const auto vocab_size = static_cast<Token>(singles_.size());
    for (const Pair& pair : in.list<Pair>()) {
        const auto fits = [&](Token token) { return token >= no_token && token < vocab_size; };
        const auto& tokens = pair.entry.tokens;
        if (pair.token < 0 || !fits(pair.token) || !fits(pair.before) || pair.entry.lead >= leads ||
            !std::all_of(tokens.begin(), tokens.end(), fits)) {
            throw Error("a saved table of likely tokens is of another model");
        }
        if (pair.before < 0) {
            singles_[pair.token] = pair.entry;
        } else {
            pairs_[slot(pair.before, pair.token)] = pair;
        }
    }
}

RecyclingWorth::RecyclingWorth() {
    for (int kind = 0; kind < kinds; ++kind) {
        for (int lead = 0; lead < RecyclingTable::leads; ++lead) {
            double p = first_rank[kind][lead], left = (1 - p) * later_rank[kind];
            for (int rank = 0; rank < RecyclingTable::width; ++rank, left /= 2) {
                counts_[kind][lead][rank] = {prior_weight * (rank == 0 ? p : 2 * left), prior_weight};
            }
        }
    }
}

void RecyclingWorth::record(Kind kind, int lead, int rank, bool came) {
    Counts& c = counts_[kind][lead][rank];
    if (c.tried >= memory) {
        c.came /= 2;
        c.tried /= 2;
    }
    c.came += came ? 1 : 0;
    c.tried += 1;
}

float RecyclingWorth::probability(Kind kind, int lead, int rank) const {
    const Counts& c = counts_[kind][lead][rank];
    return static_cast<float>(c.came / c.tried);
}

void RecyclingLevels::begin(const DraftInput& input) {
    const auto context = input.context;
    before_root_ = context.size() > 1 ? context[context.size() - 2] : -1;
}

// Everything known to follow, likeliest first.
void RecyclingLevels::guesses(Token before, Token token) {
    guesses_.clear();
    const auto* two = table_.after(before, token);
    const auto* one = table_.after(token);
    const auto add = [&](const RecyclingTable::Entry& entry, RecyclingWorth::Kind kind) {
        for (int rank = 0; rank < RecyclingTable::width && entry.tokens[rank] >= 0; ++rank) {
            if (kind == RecyclingWorth::rest && rank_of(*two, entry.tokens[rank]) >= 0) continue;
            guesses_.push_back({entry.tokens[rank], worth_.probability(kind, entry.lead, rank)});
        }
    };
    if (two) add(*two, RecyclingWorth::pair);
    if (one) add(*one, two ? RecyclingWorth::rest : RecyclingWorth::single);
    std::stable_sort(guesses_.begin(), guesses_.end(), [](const Guess& a, const Guess& b) { return a.q > b.q; });
}

void RecyclingLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    out = {ranks, {}, {}};
    for (size_t at = 0; at < paths.size(); at += static_cast<size_t>(depth)) {
        const Token before = depth > 1 ? paths[at + depth - 2] : before_root_;
        guesses(before, paths[at + depth - 1]);
        // Where too little is known, tokens without a chance fill up the level.
        for (Token filler = 0; guesses_.size() < static_cast<size_t>(ranks); ++filler) {
            const bool known = std::any_of(guesses_.begin(), guesses_.end(),
                                           [&](const Guess& guess) { return guess.token == filler; });
            if (!known) guesses_.push_back({filler, 0.0f});
        }
        for (int rank = 0; rank < ranks; ++rank) {
            out.tokens.push_back(guesses_[rank].token);
            out.q.push_back(guesses_[rank].q);
        }
    }
}

void RecyclingLevels::learn(Token before, Token token, Token came) {
    const auto* two = table_.after(before, token);
    const auto* one = table_.after(token);
    const auto record = [&](const RecyclingTable::Entry& entry, RecyclingWorth::Kind kind) {
        for (int rank = 0; rank < RecyclingTable::width && entry.tokens[rank] >= 0; ++rank) {
            if (kind == RecyclingWorth::rest && rank_of(*two, entry.tokens[rank]) >= 0) continue;
            worth_.record(kind, entry.lead, rank, entry.tokens[rank] == came);
        }
    };
    if (two) record(*two, RecyclingWorth::pair);
    if (one) record(*one, two ? RecyclingWorth::rest : RecyclingWorth::single);
}

void RecyclingLevels::verified(const Verified& step) {
    const auto& tokens = step.draft.tokens;
    const Tree& tree = *step.draft.tree;
    const Token before_root = step.context.empty() ? -1 : step.context.back();
    const auto before = [&](int node) { return node == 0 ? before_root : tokens[tree.parent(node)]; };
    // Judged by what was known when the draft was made.
    for (size_t i = 0; i < step.path.size(); ++i) {
        const int node = step.path[i];
        learn(before(node), tokens[node], i + 1 < step.path.size() ? tokens[step.path[i + 1]] : step.next);
    }
    for (int node = 0; node < tree.size(); ++node) {
        const Likeliest likeliest = step.likeliest(node);
        if (likeliest.tokens.empty()) {
            table_.store(before(node), tokens[node], step.logits(node));
        } else {
            table_.store(before(node), tokens[node], likeliest);
        }
    }
}

void MergedLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    recycled_->level(depth, paths, ranks, of_recycled_);
    of_recycled_.origins.assign(of_recycled_.tokens.size(), Origin::recycled);
    reached_.clear();
    is_reached_.clear();
    const auto length = static_cast<size_t>(depth), width = static_cast<size_t>(ranks);
    for (size_t at = 0; at < paths.size(); at += length) {
        const auto path = paths.subspan(at, length);
        is_reached_.push_back(asks_heads_ && depth <= heads_->depth() && heads_->reaches(path));
        if (is_reached_.back()) reached_.insert(reached_.end(), path.begin(), path.end());
    }
    if (reached_.empty()) {
        std::swap(out, of_recycled_);
        return;
    }
    heads_->level(depth, reached_, ranks, of_heads_);
    out = {ranks, {}, {}, {}};
    size_t of_heads = 0;
    for (size_t row = 0; row < is_reached_.size(); ++row) {
        if (is_reached_[row]) {
            merge_row(width * of_heads++, width * row, width, out);
            continue;
        }
        const auto begin = static_cast<std::ptrdiff_t>(width * row), end = begin + ranks;
        const auto add = [&](auto& to, const auto& from) {
            to.insert(to.end(), from.begin() + begin, from.begin() + end);
        };
        add(out.tokens, of_recycled_.tokens);
        add(out.q, of_recycled_.q);
        add(out.origins, of_recycled_.origins);
    }
}

// Merges both rows of a node, from these places on.
void MergedLevels::merge_row(size_t of_heads, size_t of_recycled, size_t width, LevelDrafts& out) const {
    struct Found {
        Token token;
        float q;
        Origin origin;
    };
    std::vector<Found> guesses;
    for (size_t i = of_heads; i < of_heads + width; ++i) {
        guesses.push_back({of_heads_.tokens[i], of_heads_.q[i], Origin::heads});
    }
    const auto heads_end = static_cast<std::ptrdiff_t>(width);
    for (size_t i = of_recycled; i < of_recycled + width; ++i) {
        const auto same = std::find_if(guesses.begin(), guesses.begin() + heads_end,
                                       [&](const Found& g) { return g.token == of_recycled_.tokens[i]; });
        if (same == guesses.begin() + heads_end) {
            guesses.push_back({of_recycled_.tokens[i], of_recycled_.q[i], Origin::recycled});
        } else if (of_recycled_.q[i] > 0) {
            same->origin = Origin::both;
        }
    }
    std::stable_sort(guesses.begin(), guesses.end(), [](const Found& a, const Found& b) { return a.q > b.q; });
    for (size_t i = 0; i < width; ++i) {
        out.tokens.push_back(guesses[i].token);
        out.q.push_back(guesses[i].q);
        out.origins.push_back(guesses[i].origin);
    }
}

}  // namespace medusa
