#include "probes/verify_timing.h"

#include <algorithm>

#include "llama/target.h"

namespace medusa {
namespace {

constexpr Token some_token = 1;

void check(const TimingParams& params, int width, int widest) {
    if (params.position < 1 || params.repeats < 1 || width < 1 || width > widest) {
        throw Error("timing: position and repeats must be positive, the width within 1.." + std::to_string(widest));
    }
}

Tree star(int width) {
    std::vector<Choice> choices;
    for (int rank = 0; rank + 1 < width; ++rank) choices.push_back({rank});
    return Tree(std::move(choices));
}

ContextParams context_for(const TimingParams& params, int width, int at_least = 0) {
    ContextParams context;
    context.context_size = std::max(params.position + width, at_least);
    context.threads = params.threads;
    return context;
}

void require(DecodeStatus status) {
    if (status != DecodeStatus::ok) throw Error("timing: the context is too small");
}

}  // namespace

VerifyTimer::VerifyTimer(std::shared_ptr<LlamaModel> model, int widest, int position, int context_size, Threads threads,
                         bool hidden, const StopPoll& stop)
    : widest_((check({position, 1, threads}, widest, Tree::max_size), widest)),
      target_(std::move(model), context_for({position, 1, threads}, widest, context_size),
              {star(widest).leaf_count(), star(widest).size()}, hidden) {
    target_.hold_threads();
    require(target_.prefill(std::vector<Token>(position, some_token), stop));
}

std::vector<double> VerifyTimer::time(int width, int passes) {
    check({target_.position(), passes, {}}, width, widest_);
    const Tree tree = star(width);
    const std::vector<Token> tokens(width, some_token);
    std::vector<double> times;
    while (static_cast<int>(times.size()) < passes) {
        Stopwatch watch;
        require(target_.verify(tree, tokens, nullptr));
        const double ms = watch.lap();
        if (!target_.thread_use().repeated) times.push_back(ms);
        target_.discard();
    }
    return times;
}

std::vector<double> time_verify(std::shared_ptr<LlamaModel> model, int width, const TimingParams& params) {
    check(params, width, Tree::max_size);
    return VerifyTimer(std::move(model), width, params.position, 0, params.threads, false, nullptr)
        .time(width, params.repeats);
}

std::vector<double> time_prefill(std::shared_ptr<LlamaModel> model, int width, const TimingParams& params) {
    check(params, width, model->train_context());
    LlamaTarget target(std::move(model), context_for(params, width), TreeBounds(), false);
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
