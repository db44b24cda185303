// A session of a model, with or without draft heads.
#pragma once

#include <memory>

#include "compose/compose.h"
#include "heads/weights.h"
#include "llama/context.h"

namespace medusa {

struct ModelSessionParams {
    // Of the context where none is asked for, if the model was trained on as many tokens.
    static constexpr int default_context = 4096;

    int context_size = 0;  // 0: the model's own, at most default_context
    Threads threads;
    ggml_type type_k = GGML_TYPE_F16;
    ggml_type type_v = GGML_TYPE_F16;
    Tree tree;                                // the root alone: the heads draft nothing
    std::optional<DynamicTreeStart> dynamic;  // instead of a tree
    bool lookup = false;
    bool recycling = false;  // without heads, or beside dynamic trees
};

// heads: may be null. Throws Error where the parts do not fit together.
ComposedSession open_session(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads,
                             const ModelSessionParams& params);

}  // namespace medusa
