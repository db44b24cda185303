// What all targets do with a file: they open it as `medusa chat` does, and answer.
#pragma once

#include <functional>
#include <memory>

#include "compose/model_session.h"
#include "fuzz/memory_file.h"
#include "fuzz/target.h"

namespace medusa {

// An input is a header. Weights follow it: zeros, and before them, unless its last byte is a zero, its last bytes again
// and again. Those of all seeds fit.
constexpr size_t pattern = 64;
constexpr size_t patterned = 1 << 20;
constexpr size_t weights = 16 << 20;
MemoryFile with_weights(const uint8_t* data, size_t size);

// Runs work(), which may throw Error. may_assert: it may also fail an assertion of ggml's, which ends a process with
// one line. A trial run finds that out for a model; heads have none.
void guarded(bool may_assert, const std::function<void()>& work);

// Three tokens after a prompt of three. heads, drafter: of which one may draft. Throws Error.
void answer(const std::shared_ptr<LlamaModel>& model, const std::shared_ptr<Heads>& heads,
            const std::shared_ptr<LlamaModel>& drafter = nullptr);

}  // namespace medusa
