// A file that claims to be draft heads, for the model whose path the environment names: loaded, and asked to draft.
#include <cstdlib>

#include "fuzz_engine/engine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace medusa;
    static const auto model = std::make_shared<LlamaModel>(std::getenv("MEDUSA_FUZZ_MODEL"), 0, true, LoadProgress());
    const MemoryFile file = with_weights(data, size);
    guarded(false, [&] { answer(model, std::make_shared<Heads>(model, file.path())); });
    return 0;
}
