// A second, smaller model as the source of drafts (Leviathan et al. 2023, arXiv:2211.17192; as a tree: SpecInfer).
#pragma once

#include <memory>
#include <vector>

#include "draft_model/branching_model.h"
#include "drafting/level_source.h"

namespace medusa {

// The row of a path in a level's paths, which has it: [n][length of the path].
int row_of(std::span<const Token> path, std::span<const Token> level);
// Adds the `ranks` likeliest tokens after a row of logits, with their probabilities at temperature 1.
void add_likeliest(std::span<const float> logits, int ranks, LevelDrafts& out);

// Probabilities are those of the draft model at temperature 1. Its cache follows the text: accepted drafts stay in it.
class DraftModelLevels final : public LevelSource {
  public:
    // vocab_size: of the model drafted for; the two may differ by padding.
    DraftModelLevels(std::unique_ptr<BranchingModel> model, int vocab_size, int depth);

    DrafterNeeds needs() const override { return {}; }
    int depth() const override { return depth_; }
    void prompt(std::span<const Token> prompt) override { follow(prompt); }
    void begin(const DraftInput& input) override { follow(input.context); }
    void save(StateWriter& out) override;
    void restore(StateReader& in) override;
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;

  private:
    // Tokens decoded ahead in the newest step: paths [n][depth + 1], from the root on, at level `depth`.
    struct Level {
        std::vector<Token> paths;
        std::vector<int> parents;
    };
    void follow(std::span<const Token> text);
    void keep_accepted(std::span<const Token> came);
    void decode(int depth, std::span<const Token> paths);
    Token known(Token token) const { return token < model_->vocab_size() ? token : 0; }

    std::unique_ptr<BranchingModel> model_;
    int vocab_size_, depth_;
    std::vector<Token> text_;    // committed in the model's cache
    std::vector<Level> levels_;  // [d]: the one at depth d + 1
};

}  // namespace medusa
