// Draft layers of the kind EAGLE-3 (arXiv:2503.01840), in files of their own, and the conditions under which libllama
// can run them: it ends the process where some of these are not met, so they are checked before it sees a file.
#pragma once

#include <string_view>
#include <vector>

#include "base/gguf_file.h"

namespace medusa {

class LlamaModel;

inline constexpr std::string_view eagle_architecture = "eagle3";

bool is_eagle(const GgufFile& file);

// After which layers (from 0) of the model drafted for it reads the states. Throws Error unless there are three, none
// of them the embeddings.
std::vector<int> eagle_layers(const GgufFile& file);

// Throws Error unless the file is complete, and of a form that libllama runs.
void check_eagle(const GgufFile& file);

// Throws Error unless the drafter reads the states and tokens of `model`, and finds in it what its own file lacks.
void check_eagle_fits(const LlamaModel& model, const LlamaModel& drafter);

}  // namespace medusa
