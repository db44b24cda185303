#include "training/states.h"

#include <algorithm>
#include <string>
#include <utility>

#include "decoding/sampler.h"

namespace medusa {
namespace {

constexpr int sequence[] = {0};
constexpr int output_rows = 64;  // per pass: logits take memory

ContextParams sized(int longest, std::vector<int> tap_layers, bool outputs, Threads threads) {
    if (longest < 1) throw Error("states: the longest text must have tokens");
    ContextParams params;
    params.context_size = longest;
    params.max_outputs = outputs ? output_rows : 1;
    params.threads = threads;
    params.tap_layers = std::move(tap_layers);
    return params;
}

void append(std::span<const float> row, std::vector<float>& to) {
    to.insert(to.end(), row.begin(), row.end());
}

}  // namespace

StatesReader::StatesReader(std::shared_ptr<LlamaModel> model, int longest, std::vector<int> tap_layers, bool outputs,
                           Threads threads)
    : tapped_(!tap_layers.empty()),
      outputs_(outputs),
      longest_(longest),
      context_(std::move(model), sized(longest, std::move(tap_layers), outputs, threads)) {}

States StatesReader::read(std::span<const Token> tokens, int outputs_from) {
    const int count = static_cast<int>(tokens.size());
    if (count < 1 || count > longest_) {
        throw Error("states: a text of " + std::to_string(count) + " tokens, not of 1 to " + std::to_string(longest_));
    }
    if (outputs_from < 0 || outputs_from >= count) throw Error("states: no token has an output");
    context_.model().require_tokens(tokens, "states: ");
    context_.clear();
    States out;
    out.tokens = tokens.size();
    std::vector<BatchRow> rows;
    const int first = outputs_ ? outputs_from : count;
    for (int begin = 0, end = 0; begin < count; begin = end) {
        // While states are asked for, libllama gives an output to every row.
        const bool silent = begin < first;
        end = silent ? std::min(begin + context_.batch_size(), first) : std::min(begin + output_rows, count);
        context_.set_hidden(!silent);
        rows.clear();
        for (int i = begin; i < end; ++i) rows.push_back({tokens[i], i, sequence, !silent});
        if (context_.decode(rows, nullptr) != DecodeStatus::ok) throw Error("states: the text could not be decoded");
        keep(rows, out);
    }
    if (outputs_) append(context_.logits(static_cast<int>(rows.size()) - 1), out.last_logits);
    return out;
}

void StatesReader::keep(std::span<const BatchRow> rows, States& out) {
    for (int row = 0; row < static_cast<int>(rows.size()); ++row) {
        if (tapped_) append(context_.tapped(row), out.after_layers);
        if (!rows[row].output) continue;
        append(context_.hidden(row), out.post_norm);
        out.best.push_back(argmax(context_.logits(row)));
    }
}

}  // namespace medusa
