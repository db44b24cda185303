#include "probes/verify_timing.h"

#include <algorithm>

#include "llama/target.h"

namespace medusa {
namespace {

constexpr Token some_token = 1;

void check(int position, int passes, int width, int widest) {
    if (position < 1 || passes < 1 || width < 1 || width > widest) {
        throw Error("timing: position and repeats must be positive, the width within 1.." + std::to_string(widest));
    }
}

Tree star(int width) {
    std::vector<Choice> choices;
    for (int rank = 0; rank + 1 < width; ++rank) choices.push_back({rank});
    return Tree(std::move(choices));
}

ContextParams context_for(int least, int context_size, Threads threads, std::optional<int> tap_layer) {
    ContextParams context;
    context.context_size = std::max(least, context_size);
    context.threads = threads;
    if (tap_layer) context.tap_layers = {*tap_layer};
    return context;
}

void require(DecodeStatus status) {
    if (status != DecodeStatus::ok) throw Error("timing: the context is too small");
}

}  // namespace

VerifyTimer::VerifyTimer(std::shared_ptr<LlamaModel> model, int widest, int position, int context_size, Threads threads,
                         bool hidden, std::optional<int> tap_layer, const StopPoll& stop)
    : widest_((check(position, 1, widest, Tree::max_size), widest)),
      tapped_(tap_layer.has_value()),
      target_(std::move(model), context_for(position + widest, context_size, threads, tap_layer),
              {star(widest).leaf_count(), star(widest).size()}, hidden) {
    target_.hold_threads();
    require(target_.prefill(std::vector<Token>(position, some_token), stop));
}

std::vector<double> VerifyTimer::time(int width, int passes) {
    check(target_.position(), passes, width, widest_);
    const Tree tree = star(width);
    const std::vector<Token> tokens(width, some_token);
    std::vector<double> times;
    while (static_cast<int>(times.size()) < passes) {
        Stopwatch watch;
        require(target_.verify(tree, tokens, nullptr));
        if (tapped_) target_.hidden(0);
        const double ms = watch.lap();
        if (!target_.thread_use().repeated) times.push_back(ms);
        target_.discard();
    }
    return times;
}

}  // namespace medusa
