// A file that claims to have layers for further tokens: MTP within a model, which drafts for itself, or EAGLE-3, DFlash
// and Gemma's assistants, which draft for a model in the folder that the environment names. Loaded, and asked to draft.
#include <cstdlib>
#include <string>

#include "fuzz_engine/engine.h"

namespace medusa {
namespace {

std::shared_ptr<LlamaModel> target(const char* name) {
    const std::string path = std::string(std::getenv("MEDUSA_FUZZ_TARGETS")) + "/" + name + ".gguf";
    return std::make_shared<LlamaModel>(path, 0, true, LoadProgress());
}

std::shared_ptr<LlamaModel> drafted_for(const std::shared_ptr<LlamaModel>& drafter) {
    static const auto inner_states = target("llama"), other_cache = target("gemma4");
    if (drafter->reads_inner_states()) return inner_states;
    return drafter->reads_other_cache() ? other_cache : drafter;
}

}  // namespace
}  // namespace medusa

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace medusa;
    const MemoryFile file = with_weights(data, size);
    guarded(true, [&] {
        const auto drafter =
            std::make_shared<LlamaModel>(file.path(), 0, true, LoadProgress(), std::nullopt, /*next_layers=*/true);
        answer(drafted_for(drafter), nullptr, drafter);
    });
    return 0;
}
