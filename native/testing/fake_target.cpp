#include "testing/fake_target.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <stdexcept>

#include "decoding/sampler.h"
#include "decoding/sequence_memory.h"

namespace medusa::testing {
namespace {

uint64_t hash_tokens(const std::vector<Token>& tokens, uint64_t seed) {
    uint64_t hash = 0xcbf29ce484222325ull ^ seed;
    for (const Token token : tokens) hash = (hash ^ static_cast<uint64_t>(token + 1)) * 0x100000001b3ull;
    return hash;
}

}  // namespace

FakeTarget::FakeTarget(int vocab_size, int context_size, uint64_t seed, float sharpness, int max_sequences, int memory,
                       std::optional<int> snapshots)
    : vocab_size_(vocab_size),
      context_size_(context_size),
      seed_(seed),
      sharpness_(sharpness),
      memory_(memory),
      snapshots_(snapshots) {
    CacheOps& ops = *this;
    if (snapshots) {
        sequences_ = std::make_unique<ChainMemory>(ops, *snapshots);
    } else {
        sequences_ = std::make_unique<TreeCache>(ops, max_sequences);
    }
}

// For a recurrent state.
bool FakeTarget::can_remove(int sequence, int from) const {
    if (from == 0) return true;
    const int removed = static_cast<int>(cells_.sequence(sequence).size()) - from;
    return removed <= 0 || (sequence == 0 && removed <= *snapshots_ && removed < newest_);
}

bool FakeTarget::remove(int sequence, int from, int to) {
    if (snapshots_ && (sequence < 0 || !can_remove(sequence, from))) return false;
    newest_ = 0;
    return cells_.remove(sequence, from, to);
}

void FakeTarget::copy(int source, int target, int from, int to) {
    cells_.copy(source, target, from, to);
}

// For a recurrent state: the tokens it has seen.
std::vector<uint8_t> FakeTarget::state() {
    const std::vector<Token> seen = cells_.sequence(0);
    const auto* bytes = reinterpret_cast<const uint8_t*>(seen.data());
    return snapshots_ ? std::vector<uint8_t>(bytes, bytes + seen.size() * sizeof(Token)) : std::vector<uint8_t>();
}

bool FakeTarget::set_state(std::span<const uint8_t> state) {
    std::vector<Token> seen(state.size() / sizeof(Token));
    std::memcpy(seen.data(), state.data(), state.size());
    cells_.remove(0, 0, -1);
    for (size_t i = 0; i < seen.size(); ++i) cells_.add(static_cast<int>(i), seen[i], {0});
    newest_ = 0;
    return true;
}

int FakeTarget::truncate(int count) {
    if (count == 0 || !sequences_->truncate(count)) forget();
    return sequences_->position();
}

void FakeTarget::discard() {
    if (!sequences_->rollback()) forget();
}

bool FakeTarget::set_all(StateReader& in) {
    newest_ = 0;
    return cells_.set_all(in);
}

void FakeTarget::forget() {
    cells_.remove(-1, 0, -1);
    sequences_->forget();
}

void FakeTarget::add_pending() {
    const auto pending = sequences_->pending();
    const int first = position() - static_cast<int>(pending.size());
    for (size_t i = 0; i < pending.size(); ++i) cells_.add(first + static_cast<int>(i), pending[i], {0});
}

std::vector<float> FakeTarget::logits_after(const std::vector<Token>& tokens) const {
    const size_t seen = memory_ > 0 ? std::min(tokens.size(), static_cast<size_t>(memory_)) : tokens.size();
    const uint64_t hash = hash_tokens({tokens.end() - static_cast<std::ptrdiff_t>(seen), tokens.end()}, seed_);
    std::vector<float> logits(vocab_size_);
    for (int token = 0; token < vocab_size_; ++token) {
        logits[token] = sharpness_ * static_cast<float>(uniform(hash, static_cast<uint64_t>(token)));
    }
    return logits;
}

DecodeStatus FakeTarget::prefill(std::span<const Token> tokens, const StopPoll& stop, const OnState&) {
    if (static_cast<int>(cells_.size() + tokens.size()) > context_size_) return DecodeStatus::context_full;
    const int end = position() + static_cast<int>(tokens.size()), last = end - 1;
    while (position() < end) {
        const int next = position() < last ? sequences_->next_keep(last) : end;
        const auto part = static_cast<size_t>(next - position());
        add_pending();
        for (size_t i = 0; i < part; ++i) cells_.add(position() + static_cast<int>(i), tokens[i], {0});
        sequences_->appended(static_cast<int>(part));
        tokens = tokens.subspan(part);
        if (next < last) sequences_->keep();
    }
    rows_.assign(1, logits_after(cells_.sequence(0)));
    return DecodeStatus::ok;
}

DecodeStatus FakeTarget::verify(const Tree& tree, std::span<const Token> tokens, const StopPoll& stop) {
    if (static_cast<int>(cells_.size()) + tree.size() > context_size_) return DecodeStatus::context_full;
    sequences_->prepare(tree, tokens);
    add_pending();
    newest_ = tree.size();
    for (int node = 0; node < tree.size(); ++node) {
        std::set<Token> siblings;
        for (const int child : tree.children(node)) {
            if (!siblings.insert(tokens[child]).second) throw std::logic_error("two siblings carry the same token");
        }
        const auto& sequences = tree.sequences(node);
        cells_.add(position() + tree.depth_of(node), tokens[node], {sequences.begin(), sequences.end()});
    }
    rows_.clear();
    for (int node = 0; node < tree.size(); ++node) {
        const size_t length = position() + tree.depth_of(node) + 1;
        std::vector<Token> path;
        for (const int id : tree.sequences(node)) {
            std::vector<Token> tokens_of = cells_.sequence(id);
            tokens_of.resize(length);
            if (!path.empty() && tokens_of != path) throw std::logic_error("sequences of a node see different paths");
            path = std::move(tokens_of);
        }
        rows_.push_back(logits_after(path));
    }
    return DecodeStatus::ok;
}

std::vector<Token> FakeGuesses::after(const std::vector<Token>& path) const {
    const auto logits = target_.logits_after(path);
    std::vector<Token> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return logits[a] > logits[b]; });
    if (uniform(hash_tokens(path, seed_), 0) >= acceptance_) std::rotate(order.begin(), order.begin() + 1, order.end());
    return order;
}

void FakeLevels::begin(const DraftInput& input) {
    if (ends_after_ && begun_++ >= *ends_after_) throw DraftsEnd("the guesses end here");
    before_.assign(input.context.begin(), input.context.end() - 1);
}

void FakeLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    const Stopwatch watch;
    out = {ranks, {}, {}};
    for (size_t at = 0; at < paths.size(); at += static_cast<size_t>(depth)) {
        std::vector<Token> path = before_;
        path.insert(path.end(), paths.begin() + at, paths.begin() + at + depth);
        const std::vector<Token> order = guesses_.after(path);
        auto q = static_cast<float>(uniform(hash_tokens(path, seed_), 1));
        for (int rank = 0; rank < ranks; ++rank, q /= 2) {
            out.tokens.push_back(order.at(rank));
            out.q.push_back(q);
        }
    }
    while (watch.elapsed_ms() < level_ms_) {
    }
}

}  // namespace medusa::testing
