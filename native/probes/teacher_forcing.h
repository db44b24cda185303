// What a model says next after each prefix of a given text: the reference that explains a difference between plain and
// speculative decoding.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "decoding/tree.h"
#include "llama/model.h"
#include "llama/pass_threads.h"

namespace medusa {

struct TeacherForced {
    std::vector<Token> tokens;       // the argmax after each prefix, from the prompt's end on
    std::vector<float> last_logits;  // behind tokens.back()
};

// Decodes `tokens` behind its first `prompt_length` in verify steps: step i verifies the tree of parents[i]
// (Tree::from_parents), with the next tokens on the nodes of paths[i] (from the root downwards) and fillers on all
// others, then commits that path. Where they have ended, it decodes plainly. With the trees and the accepted paths of a
// generation it repeats its batch widths and cache layout, but neither its drafts nor its acceptance.
TeacherForced teacher_forced(std::shared_ptr<LlamaModel> model, std::span<const Token> tokens, int prompt_length,
                             std::span<const std::vector<int>> parents, std::span<const std::vector<int>> paths,
                             Threads threads);

}  // namespace medusa
