// A session for a model, alone or with what drafts for it.
#pragma once

#include <memory>

#include "compose/compose.h"
#include "heads/weights.h"
#include "llama/context.h"

namespace medusa {

struct ModelSessionParams {
    // Context size if none is requested and the model was trained on at least as many tokens.
    static constexpr int default_context = 4096;
    // Levels that layers for further tokens fill, where one serves for all of them: prices decide how many are asked.
    static constexpr int drafter_depth = 8;

    int context_size = 0;  // 0: the model's own, at most default_context
    Threads threads;
    ggml_type type_k = GGML_TYPE_F16;
    ggml_type type_v = GGML_TYPE_F16;
    Tree tree;                                // only the root: the heads draft nothing
    std::optional<DynamicTreeStart> dynamic;  // instead of a tree
    bool lookup = false;
    bool recycling = false;                    // without heads, or beside dynamic trees
    std::shared_ptr<LlamaModel> draft_model;   // fills the trees instead of heads
    std::shared_ptr<LlamaModel> drafter;       // fills them with its layers for further tokens; may be the model itself
    std::optional<int> draft_rows;             // of its output matrix (OutputRows)
    int draft_max = 0;                         // depth of the dynamic trees of either
    std::optional<LookaheadParams> lookahead;  // drafts alone
};

// heads: may be null. Throws Error if the parts do not fit together.
ComposedSession open_session(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads,
                             const ModelSessionParams& params);

}  // namespace medusa
