// libllama's samplers as the engine's chain.
#pragma once

#include <memory>
#include <span>

#include "decoding/sampler.h"

namespace medusa {

// The chain of `params` over `vocab_size` logits. Penalties look back on `prompt`, too, at most `context_size` tokens.
std::unique_ptr<Chain> make_chain(const SamplingParams& params, int vocab_size, int context_size,
                                  std::span<const Token> prompt);

}  // namespace medusa
