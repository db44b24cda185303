// Layers that read pairs of a token and a state as the source of drafts: those for further tokens that a model brings
// along (multi-token prediction, MTP; DeepSeek-V3, arXiv:2412.19437, section 2.2), and EAGLE-3's (arXiv:2503.01840).
#pragma once

#include <memory>
#include <vector>

#include "draft_model/branching_model.h"
#include "draft_model/output_rows.h"
#include "drafting/level_source.h"
#include "llama/context.h"

namespace medusa {

// The layer at position p reads the token there and the model's state of the token before it: a pair. Below the last
// committed token, the states are the layer's own. EAGLE-3's layer reads the next token instead, so that a text's first
// one has no pair, and states after three of the model's layers, which are encoded first.
//
// The cache holds the pairs of committed tokens, all with states of the model, and the root's. Drafts are dropped after
// each step, and those that were accepted are decoded again with the model's states.
class PairLevels final : public LevelSource {
  public:
    // model: has the layers. params: of the model drafted for; `other` where its cache or weights are read. bounds:
    // branches at a time, and rows of one level. target: the model drafted for. draft_rows: as OutputRows::of() wants
    // them.
    PairLevels(std::shared_ptr<LlamaModel> model, const ContextParams& params, const TreeBounds& bounds, int depth,
               const LlamaModel& target, std::optional<int> draft_rows);

    DrafterNeeds needs() const override;
    int depth() const override { return depth_; }
    void committed(int position, Token token, std::span<const float> state) override;
    int resumes_at(int same) const override;
    void rolled_back(int position, int same) override;
    void save(StateWriter& out) override;
    void restore(StateReader& in) override;
    void begin(const DraftInput& input) override;
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override;

  private:
    // How the layers draft the tokens of one level after the other.
    enum class Way {
        repeated,  // one layer, for all levels
        several,   // each level by a layer of its own, which decodes the whole chain; so nothing branches
        shared     // a model that reads the other's cache, and writes no cells
    };
    static Way way_of(const LlamaModel& model);

    size_t width() const { return static_cast<size_t>(context_.model().embedding_size()); }
    // Numbers in a state of the model drafted for.
    size_t wide() const { return newest_.size(); }
    // The model drafted for may have a few tokens more.
    Token known(Token token) const { return token < context_.model().vocab_size() ? token : 0; }
    void start_at(int position);
    void cut(int position);
    void use_layer(int layer, int position);
    std::vector<float> encoded(std::span<const float> states);
    void add_waiting(std::span<const float> states, bool outputs);
    void drop_drafts();
    void decode();
    void decode_waiting();
    void decode_root();
    void decode_chain(std::span<const Token> path);
    void decode_level(int depth, std::span<const Token> paths);
    void keep_states(int rows);

    const Way way_;
    const int depth_, vocab_size_;
    const std::vector<int> layers_;            // whose states are encoded; none: states are the model's last
    const int first_;                          // the token whose pair is at position 0
    std::unique_ptr<OutputRows> output_rows_;  // null: libllama multiplies all of them
    LlamaContext context_;
    BranchCache cache_;
    std::vector<BatchRow> rows_;
    int first_row_ = 0;  // of the newest level in the newest decode

    int count_ = 0;                      // pairs of committed tokens
    std::vector<Token> waiting_;         // those of the last of them, which are not in the cache yet
    std::vector<float> waiting_states_;  // [waiting][wide]: before each of them
    std::vector<float> newest_;          // [wide]: the model's state of token known_ - 1; zeros where it is not known
    int known_ = 0;
    Token root_ = no_token;
    std::vector<Token> paths_;   // of the newest level: [n][level], from the root on
    std::vector<float> own_;     // [n][h]: its states; where layers are several, of the last token at each level
    std::vector<float> before_;  // [n][h]: what the newest decode reads
};

}  // namespace medusa
