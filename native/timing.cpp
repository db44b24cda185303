#include "timing.h"

#include "llama_target.h"

namespace medusa {
namespace {

constexpr Token some_token = 1;

void check(const TimingParams& params, int width, int widest) {
    if (params.position < 1 || params.repeats < 1 || width < 1 || width > widest) {
        throw Error("timing: position and repeats must be positive, the width within 1.." + std::to_string(widest));
    }
}

void require(DecodeStatus status) {
    if (status != DecodeStatus::ok) throw Error("timing: the context is too small");
}

}  // namespace

std::vector<double> time_verify(std::shared_ptr<LlamaModel> model, int width, const TimingParams& params) {
    check(params, width, Tree::max_size);
    std::vector<Choice> choices;
    for (int rank = 0; rank + 1 < width; ++rank) choices.push_back({rank});
    const Tree tree(std::move(choices));
    ContextParams context;
    context.context_size = params.position + width;
    context.threads = params.threads;
    LlamaTarget target(std::move(model), context, {tree.leaf_count(), tree.size()}, false);
    require(target.prefill(std::vector<Token>(params.position, some_token), nullptr));
    const std::vector<Token> tokens(width, some_token);
    std::vector<double> times;
    for (int i = 0; i < params.repeats; ++i) {
        Stopwatch watch;
        require(target.verify(tree, tokens, nullptr));
        times.push_back(watch.lap());
        target.discard();
    }
    return times;
}

std::vector<double> time_prefill(std::shared_ptr<LlamaModel> model, int width, const TimingParams& params) {
    check(params, width, model->train_context());
    ContextParams context;
    context.context_size = params.position + width;
    context.threads = params.threads;
    LlamaTarget target(std::move(model), context, TreeBounds(), false);
    require(target.prefill(std::vector<Token>(params.position, some_token), nullptr));
    std::vector<double> times;
    for (int i = 0; i < params.repeats; ++i) {
        Stopwatch watch;
        require(target.prefill(std::vector<Token>(width, some_token), nullptr));
        times.push_back(watch.lap());
        target.truncate(params.position);
    }
    return times;
}

}  // namespace medusa
