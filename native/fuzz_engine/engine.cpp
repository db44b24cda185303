#include "fuzz_engine/engine.h"

#include "llama/backend.h"

namespace medusa {
namespace {

struct FailedAssertion {};

}  // namespace

MemoryFile with_weights(const uint8_t* data, size_t size) {
    std::vector<uint8_t> whole(data, data + size);
    if (size >= pattern && data[size - 1] != 0) {
        for (size_t added = 0; added < patterned; added += pattern) {
            whole.insert(whole.end(), data + size - pattern, data + size);
        }
    }
    return MemoryFile(whole.data(), whole.size(), weights);
}

void guarded(bool may_assert, const std::function<void()>& work) {
    initialise_backend();
    ggml_set_abort_callback([](const char*) { throw FailedAssertion(); });
    try {
        work();
    } catch (const Error& error) {
        expect_one_line(error);
    } catch (const FailedAssertion&) {
        expect(may_assert, "no assertion fails");
    }
}

void answer(const std::shared_ptr<LlamaModel>& model, const std::shared_ptr<Heads>& heads,
            const std::shared_ptr<LlamaModel>& drafter) {
    ModelSessionParams params;
    params.context_size = 64;
    params.threads = {1, false};
    params.lookup = true;
    if (heads) params.tree = Tree({{0}, {1}, {0, 0}});
    if (drafter) {
        params.tree = Tree({{0}, {0, 0}});
        params.drafter = drafter;
    }
    const auto session = open_session(model, heads, params).session;
    GenerateParams asked;
    asked.max_tokens = 3;
    asked.ignore_eos = true;
    const Token last = model->vocab_size() - 1;
    const std::vector<Token> prompt = {0, last / 2, last};
    session->generate(prompt, asked, [](const std::vector<Piece>&) {}, [] { return false; });
}

}  // namespace medusa
