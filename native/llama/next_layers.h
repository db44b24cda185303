// Layers for further tokens: those that model files bring along (MTP), with the conditions under which libllama can run
// them, and those of state_readers.h. It ends the process where some of these are not met, so they are checked before
// it sees a file.
#pragma once

#include <string_view>

#include "base/gguf_file.h"

namespace medusa {

class LlamaModel;

// A model made of such layers alone, which reads the cache of the model that it drafts for.
inline constexpr std::string_view assistant_architecture = "gemma4-assistant";

// How many of its layers are such, as the file says; 0: none.
uint32_t next_layer_count(const GgufFile& file);
// Whether it has no others: it drafts for a model in another file.
bool has_next_layers_alone(const GgufFile& file);

// Throws Error unless the file has such layers, complete and of a kind that libllama runs.
void check_next_layers(const GgufFile& file);

// Throws Error unless the next layers of `drafter` read the states, tokens and cache of `model`. Both may be the same.
void check_next_layers_fit(const LlamaModel& model, const LlamaModel& drafter);

}  // namespace medusa
