// Drafters in files of their own that read states of several layers of a model: EAGLE-3 (arXiv:2503.01840) and DFlash
// (arXiv:2602.06036); and the conditions under which libllama can run them: it ends the process where some of these are
// not met, so they are checked before it sees a file.
#pragma once

#include <string_view>
#include <vector>

#include "base/common.h"
#include "base/gguf_file.h"

namespace medusa {

class LlamaModel;

inline constexpr std::string_view eagle_architecture = "eagle3", dflash_architecture = "dflash";

bool is_state_reader(const GgufFile& file);

// After which layers (from 0) of the model drafted for it reads the states. Throws Error unless the file names them, as
// many as its kind reads, none of them the embeddings.
std::vector<int> layers_read(const GgufFile& file);

// Which tokens the rows of the drafter's own output matrix stand for (d2t); empty: all, in order. Throws Error where
// that is no list of tokens of the file.
std::vector<Token> own_vocabulary(const GgufFile& file);

// DFlash: how many tokens it decodes at a time, the root included.
int block_size(const GgufFile& file);

// Throws Error unless the file is complete, and of a form that libllama runs.
void check_state_reader(const GgufFile& file);

// Throws Error unless the drafter reads the states and tokens of `model`, and finds in it what its own file lacks.
void check_state_reader_fits(const LlamaModel& model, const LlamaModel& drafter);

}  // namespace medusa
