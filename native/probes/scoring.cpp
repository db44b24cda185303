#include "probes/scoring.h"
#include "llama/context.h"
#include "llama/sampler_chain.h"

#include <algorithm>
#include <cmath>

namespace medusa {
namespace {

constexpr int sequence[] = {0};

double cost(std::span<const float> logits, Token token) {
    const float highest = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(logit - highest);
    return std::log(sum) + highest - logits[token];
}

}  // namespace

Scores score(std::shared_ptr<LlamaModel> model, std::span<const Token> tokens, int width, Threads threads) {
    const int count = static_cast<int>(tokens.size());
    if (count < 1) throw Error("score: there are no tokens");
    model->require_tokens(tokens, "score: ");
    width = std::min(width, count);
    ContextParams params;
    params.context_size = count;
    params.max_outputs = width;
    params.threads = threads;
    LlamaContext context(std::move(model), params);
    if (width < 1 || width > context.batch_size()) {
        throw Error("score: the width must be within 1.." + std::to_string(context.batch_size()));
    }
    Scores out;
    std::vector<BatchRow> rows;
    for (int begin = 0; begin < count; begin += width) {
        const int end = std::min(begin + width, count);
        rows.clear();
        for (int i = begin; i < end; ++i) rows.push_back({tokens[i], i, sequence, true});
        if (context.decode(rows, nullptr) != DecodeStatus::ok) throw Error("score: the text could not be decoded");
        for (int i = begin; i < end; ++i) {
            const auto logits = context.logits(i - begin);
            out.best.push_back(argmax(logits));
            if (i + 1 < count) out.costs.push_back(cost(logits, tokens[i + 1]));
        }
    }
    return out;
}

}  // namespace medusa
