// libllama's samplers as the engine's chain.
#pragma once

#include <memory>
#include <span>

#include "decoding/sampler.h"

namespace medusa {

// The chain of `params` over `vocab_size` logits; the repeat penalty starts with the end of `prompt`.
std::unique_ptr<Chain> make_chain(const SamplingParams& params, int vocab_size, std::span<const Token> prompt);

}  // namespace medusa
