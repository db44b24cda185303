// Drafters that fill a block of positions in one pass (DFlash, arXiv:2602.06036) as the source of drafts.
#pragma once

#include <memory>
#include <vector>

#include "draft_model/branching_model.h"
#include "drafting/level_source.h"
#include "llama/context.h"

namespace medusa {

// The cache holds, for each committed token, what the drafter makes of the model's states there. A step decodes the
// root and masks after it, which see one another; a mask's output tells what comes at its place, whatever comes before
// it. So all nodes of a level have the same candidates. The block is dropped before the next step.
class BlockLevels final : public LevelSource {
  public:
    // params: of the model drafted for, `target`; `other` where its weights are read. depth: less than the block's
    // size.
    BlockLevels(std::shared_ptr<LlamaModel> model, const ContextParams& params, int depth, const LlamaModel& target);

    DrafterNeeds needs() const override;
    int depth() const override { return depth_; }
    void committed(int position, Token token, std::span<const float> state) override;
    void rolled_back(int position, int same) override { cut(same); }
    void save(StateWriter& out) override;
    void restore(StateReader& in) override;
    void begin(const DraftInput& input) override;
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;

  private:
    void start_at(int position);
    void cut(int position);
    void drop_block() { context_.remove(0, cache_.position(), -1); }
    int waiting() const { return count_ - cache_.position(); }
    void decode_waiting();
    void decode_block();
    void decode(std::span<const BatchRow> rows);

    const int depth_, vocab_size_;
    const Token mask_;
    const std::vector<int> layers_;  // whose states are read
    const size_t wide_;              // numbers in the states of a token
    LlamaContext context_;
    BranchCache cache_;                  // of committed tokens; nothing branches
    int count_ = 0;                      // committed tokens
    std::vector<float> waiting_states_;  // [waiting()][wide]: of the last of them, which are not in the cache yet
    Token root_ = no_token;
};

}  // namespace medusa
