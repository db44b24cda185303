// A file that claims to be a model: loaded, and asked for three tokens.
#include "fuzz_engine/engine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace medusa;
    const MemoryFile file = with_weights(data, size);
    guarded(true, [&] { answer(std::make_shared<LlamaModel>(file.path(), 0, true, LoadProgress()), nullptr); });
    return 0;
}
