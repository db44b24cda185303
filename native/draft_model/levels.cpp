#include "draft_model/levels.h"

#include <algorithm>
#include <cmath>

#include "decoding/sampler.h"

namespace medusa {

int row_of(std::span<const Token> path, std::span<const Token> level) {
    int row = 0;
    while (!std::equal(path.begin(), path.end(), level.begin() + static_cast<std::ptrdiff_t>(row * path.size()))) ++row;
    return row;
}

void add_likeliest(std::span<const float> logits, int ranks, LevelDrafts& out) {
    std::vector<int> likeliest;
    top_indices(logits, ranks, likeliest);
    if (likeliest.size() < static_cast<size_t>(ranks)) throw DraftsEnd("the drafter's logits are not numbers");
    const float largest = logits[likeliest[0]];
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    for (const int token : likeliest) {
        out.tokens.push_back(token);
        out.q.push_back(static_cast<float>(std::exp(logits[token] - largest) / sum));
    }
}

DraftModelLevels::DraftModelLevels(std::unique_ptr<BranchingModel> model, int vocab_size, int depth)
    : model_(std::move(model)), vocab_size_(std::min(vocab_size, model_->vocab_size())), depth_(depth) {}

// `came`: the tokens after the committed ones. Commits those that were decoded ahead.
void DraftModelLevels::keep_accepted(std::span<const Token> came) {
    std::vector<int> path;
    for (size_t d = 0; d < levels_.size() && d < came.size(); ++d) {
        const Level& level = levels_[d];
        const size_t length = d + 2;
        int found = -1;
        for (size_t row = 0; row < level.parents.size() && found < 0; ++row) {
            const bool below = d == 0 || level.parents[row] == path.back();
            if (below && level.paths[row * length + length - 1] == came[d]) found = static_cast<int>(row);
        }
        if (found < 0) break;
        path.push_back(found);
    }
    model_->keep(path);
    text_.insert(text_.end(), came.begin(), came.begin() + static_cast<std::ptrdiff_t>(path.size()));
}

// Makes the row of the text's last token the model's newest.
void DraftModelLevels::follow(std::span<const Token> text) {
    const auto mismatch = std::mismatch(text_.begin(), text_.end(), text.begin(), text.end()).first;
    auto same = static_cast<size_t>(mismatch - text_.begin());
    if (same == text_.size()) {
        keep_accepted(text.subspan(same));
        same = text_.size();
    }
    levels_.clear();
    // Where the last token is already known, it is decoded again for its row.
    same = std::min(same, text.size() - 1);
    if (same < text_.size()) {
        model_->truncate(static_cast<int>(same));
        same = static_cast<size_t>(model_->position());
    }
    std::vector<Token> rest;
    for (const Token token : text.subspan(same)) rest.push_back(known(token));
    model_->append(rest);
    text_.assign(text.begin(), text.end());
}

void DraftModelLevels::decode(int depth, std::span<const Token> paths) {
    const auto length = static_cast<size_t>(depth);
    Level level{{paths.begin(), paths.end()}, {}};
    std::vector<Token> tokens;
    for (size_t at = 0; at < paths.size(); at += length) {
        level.parents.push_back(levels_.empty() ? 0 : row_of(paths.subspan(at, length - 1), levels_.back().paths));
        tokens.push_back(known(paths[at + length - 1]));
    }
    model_->branch(level.parents, tokens);
    levels_.push_back(std::move(level));
}

void DraftModelLevels::save(StateWriter& out) {
    levels_.clear();
    model_->truncate(model_->position());
    out.list<Token>(text_);
    model_->save(out);
}

void DraftModelLevels::restore(StateReader& in) {
    levels_.clear();
    text_ = in.list<Token>();
    if (model_->restore(in) && model_->position() == static_cast<int>(text_.size())) return;
    model_->truncate(0);
    text_.clear();
    throw Error("a saved cache is of another draft model");
}

void DraftModelLevels::level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) {
    out = {ranks, {}, {}};
    if (depth > 1) decode(depth, paths);
    const int rows = static_cast<int>(paths.size()) / depth;
    const auto known = static_cast<size_t>(vocab_size_);
    for (int row = 0; row < rows; ++row) add_likeliest(model_->logits(row).first(known), ranks, out);
}

}  // namespace medusa
