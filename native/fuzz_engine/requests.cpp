// The numbers of a request, at all the values that a client may send: short answers in three sessions that stay open.
// Between them, each session has to say what it said at first.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fuzz_engine/engine.h"
#include "grammar/gbnf.h"

namespace medusa {
namespace {

constexpr int asked_between = 64;
constexpr size_t longest_prompt = 16;

std::shared_ptr<const Grammar> any_text() {
    static const auto grammar = std::make_shared<const Grammar>(parse_gbnf("root ::= [^\\x00]*"));
    return grammar;
}

float number(FuzzedDataProvider& input) {
    const auto bits = input.ConsumeIntegral<uint32_t>();
    float out;
    std::memcpy(&out, &bits, sizeof(out));
    return out;
}

GenerateParams request(FuzzedDataProvider& input, int vocab_size) {
    GenerateParams out;
    SamplingParams& sampling = out.sampling;
    for (float* value : {&sampling.temperature, &sampling.top_p, &sampling.min_p, &sampling.repeat_penalty,
                         &sampling.frequency_penalty, &sampling.presence_penalty}) {
        if (input.ConsumeBool()) *value = number(input);
    }
    if (input.ConsumeBool()) sampling.top_k = input.ConsumeIntegral<int>();
    if (input.ConsumeBool()) sampling.repeat_last_n = input.ConsumeIntegral<int>();
    sampling.seed = input.ConsumeIntegral<uint64_t>();
    for (auto left = input.ConsumeIntegralInRange(0, 3); left > 0; --left) {
        sampling.logit_bias.emplace_back(input.ConsumeIntegralInRange(-1, vocab_size), number(input));
    }
    AcceptParams& accept = out.accept;
    accept.kind = input.PickValueInArray({AcceptKind::greedy, AcceptKind::exact, AcceptKind::rejection,
                                          AcceptKind::typical, AcceptKind::nucleus, AcceptKind::synthetic});
    for (float* value : {&accept.epsilon, &accept.delta, &accept.synthetic_rate}) {
        if (input.ConsumeBool()) *value = number(input);
    }
    accept.model_alone = input.ConsumeBool();
    accept.greedy_root = input.ConsumeBool();
    out.max_tokens = input.ConsumeIntegralInRange(0, 4);
    out.ignore_eos = input.ConsumeBool();
    if (input.ConsumeIntegralInRange(0, 3) == 0) {
        out.grammar = any_text();
        out.written = std::max(input.ConsumeIntegral<int>(), 0);
    }
    out.stop_loops = input.ConsumeBool();
    out.watchdog = input.ConsumeBool();
    if (input.ConsumeBool()) out.logprobs = input.ConsumeIntegral<int>();
    if (input.ConsumeBool()) out.stop.push_back(input.ConsumeRandomLengthString(3));
    return out;
}

class Answering {
  public:
    Answering(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads, const ModelSessionParams& params)
        : vocab_size_(model->vocab_size()),
          session_(open_session(std::move(model), std::move(heads), params).session),
          first_(usual()) {}

    void answer(FuzzedDataProvider& input) {
        if (++count_ % asked_between == 0) expect(usual() == first_, "a session says what it said at first");
        const GenerateParams params = request(input, vocab_size_);
        std::vector<Token> prompt;
        for (const uint8_t byte : input.ConsumeRemainingBytes<uint8_t>()) prompt.push_back(byte % (vocab_size_ + 1));
        prompt.resize(std::min(prompt.size(), longest_prompt));
        params.sampling.check();
        params.accept.check();
        const Generation& made = generate(prompt, params);
        const auto tokens = static_cast<int>(made.tokens.size());
        expect(tokens <= params.max_tokens, "an answer has as many tokens as were asked for");
        for (const Token token : made.tokens) expect(token >= 0 && token < vocab_size_, "its tokens are the model's");
        expect(is_utf8(made.text), "its text is UTF-8");
    }

  private:
    const Generation& generate(const std::vector<Token>& prompt, const GenerateParams& params) {
        const auto piece = [&](const std::vector<Piece>& pieces) {
            for (const Piece& one : pieces) {
                if (!one.chances) continue;
                expect(one.chances->logprob <= 0, "a probability is at most 1");
                expect(std::cmp_less_equal(one.chances->top.size(), params.logprobs),
                       "no more are told than asked for");
            }
        };
        return session_->generate(prompt, params, piece, [] { return false; });
    }

    std::vector<Token> usual() {
        GenerateParams params;
        params.max_tokens = 8;
        params.ignore_eos = true;
        return generate({1, 2, 3}, params).tokens;
    }

    int vocab_size_, count_ = 0;
    std::unique_ptr<Session> session_;
    std::vector<Token> first_;
};

std::vector<Answering> sessions() {
    const auto model = std::make_shared<LlamaModel>(std::getenv("MEDUSA_FUZZ_SHALLOW"), 0, true, LoadProgress());
    const auto heads = std::make_shared<Heads>(model, std::getenv("MEDUSA_FUZZ_HEADS"));
    ModelSessionParams with_tree, grown, without_heads;
    for (ModelSessionParams* params : {&with_tree, &grown, &without_heads}) {
        params->context_size = 64;
        params->threads = {1, false};
    }
    with_tree.tree = Tree({{0}, {1}, {0, 0}});
    grown.dynamic = DynamicTreeStart{.curve = {{1, 1.0}, {16, 1.1}}, .learns_cost = false, .max_nodes = 8};
    grown.lookup = true;
    without_heads.lookup = without_heads.recycling = true;
    std::vector<Answering> out;
    out.emplace_back(model, heads, with_tree);
    out.emplace_back(model, heads, grown);
    out.emplace_back(model, nullptr, without_heads);
    return out;
}

}  // namespace
}  // namespace medusa

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace medusa;
    static std::vector<Answering> all;
    guarded(false, [&] {
        if (all.empty()) all = sessions();
        FuzzedDataProvider input(data, size);
        all[input.ConsumeIntegralInRange<size_t>(0, all.size() - 1)].answer(input);
    });
    return 0;
}
