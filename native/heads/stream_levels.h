// Streams (Speculative Streaming 3.1): rows that run through the base's own top layers beside its context, one for each
// level of a tree.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "heads/graph.h"
#include "heads/levels.h"
#include "heads/token_embeddings.h"
#include "llama/context.h"
#include "llama/layer_tap.h"

namespace medusa {

// Stream j (from 1) starts from the tapped state of the last accepted token, at position t, plus its own embedding, is
// rotated to position t + j, and sees what that token sees and the streams up to itself. The resulting distribution
// holds for level j below any path.
//
// The keys and values of streams lie in empty cells of libllama's own caches: those that the last accepted token does
// not see, since a cache holds one text. libllama writes such a cell before any mask shows it. Values are kept finite,
// so that hidden cells add nothing.
class StreamLevels final : public HeadsLevels {
  public:
    // attention: of the context that the states come from; must outlive this object.
    StreamLevels(std::shared_ptr<Heads> heads, int depth, ThreadCount threads, const AttentionTap& attention);

    // Leaves alone cells before this one, too: for decoding further than the tokens that are seen.
    void keep_free(int64_t cells) { first_place_ = cells; }

    // The probabilities are the same below every node: one row.
    std::span<const float> probabilities(int depth, std::span<const Token> paths) override;

  private:
    // Over the first `cells` cells.
    struct Pass {
        DeviceGraph graph;
        int64_t cells;
        ggml_tensor *states, *positions, *places, *mask;
    };

    void begin_step(const DraftInput& input) override;
    void check_device() const;
    // Chooses cells for the streams, outside those in seen_. Returns how many cells a pass covers.
    int64_t choose_places();
    void set_inputs(const DraftInput& input);
    std::unique_ptr<Pass> build(int64_t cells) const;
    ggml_tensor* layer(Pass& pass, size_t number, ggml_tensor* x) const;
    ggml_tensor* attention(Pass& pass, size_t number, ggml_tensor* x) const;
    ggml_tensor* feed_forward(ggml_context* c, const StreamLayer& layer, ggml_tensor* x) const;
    ggml_tensor* normed(ggml_context* c, ggml_tensor* x, ggml_tensor* weight) const;

    const AttentionTap& attention_;
    std::unique_ptr<TokenEmbeddings> embeddings_;  // where the root is read
    std::unique_ptr<Pass> pass_;
    int64_t first_place_ = 0;
    std::vector<char> seen_;         // [cells of the cache]: what the last accepted token sees
    std::vector<int64_t> places_;    // [depth]
    std::vector<float> states_;      // [depth][h]
    std::vector<ggml_fp16_t> mask_;  // [depth][cells of the pass]
    std::span<const float> output_;  // [depth][output_rows]
};

// What streams draft along a given text, for measuring them.
// Reads one text after another, each from an empty cache: all of a text's tokens in wide passes, then the streams at
// one position after another.
class StreamReader {
  public:
    // longest: most tokens in a text. Throws Error for heads of another kind or model.
    StreamReader(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads, int longest, Threads threads);
    ~StreamReader();

    // levels: of the draft after tokens[position], whose root is tokens[position + 1].
    using OnDraft = std::function<void(int position, HeadsLevels& levels)>;
    // At positions first .. tokens - 2.
    void read(std::span<const Token> tokens, int first, const OnDraft& on_draft);
    const Heads& heads() const { return *heads_; }

  private:
    std::shared_ptr<Heads> heads_;
    int longest_;
    LlamaContext context_;
    std::unique_ptr<StreamLevels> levels_;
};

}  // namespace medusa
