#include "draft_model/llama_branches.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace medusa {
namespace {

const std::vector<int> first_sequence{0};
constexpr int most_padding = 128;  // models of one family pad their vocabularies to different sizes

ContextParams sized_for(ContextParams params, const TreeBounds& bounds, int ahead) {
    params.context_size += ahead;
    params.max_sequences = bounds.leaves;
    params.max_outputs = bounds.nodes;
    return params;
}

}  // namespace

LlamaBranches::LlamaBranches(std::shared_ptr<LlamaModel> model, ContextParams params, const TreeBounds& bounds,
                             int ahead)
    : context_(std::move(model), sized_for(params, bounds, ahead)), cache_(context_, bounds.leaves) {}

void LlamaBranches::truncate(int count) {
    if (count > 0 && cache_.truncate(count)) return;
    context_.clear();
    cache_.forget();
}

void LlamaBranches::decode() {
    const DecodeStatus status = context_.decode(rows_, nullptr);
    if (status != DecodeStatus::ok) throw Error("the draft model's context is full", "give a larger {ctx_size}");
}

void LlamaBranches::append(std::span<const Token> tokens) {
    while (!tokens.empty()) {
        const auto chunk = tokens.first(std::min<size_t>(tokens.size(), context_.piece_size()));
        tokens = tokens.subspan(chunk.size());
        rows_.clear();
        for (const Token token : chunk) {
            const int position = cache_.position() + static_cast<int>(rows_.size());
            const bool last = tokens.empty() && rows_.size() + 1 == chunk.size();
            rows_.push_back({token, position, first_sequence, last});
        }
        decode();
        cache_.appended(static_cast<int>(chunk.size()));
        first_row_ = static_cast<int>(chunk.size()) - 1;
    }
}

void LlamaBranches::branch(std::span<const int> parents, std::span<const Token> tokens) {
    const std::span<const int> sequences = cache_.branch(parents);
    const int position = cache_.position() + cache_.depth() - 1;
    rows_.clear();
    for (size_t i = 0; i < tokens.size(); ++i) rows_.push_back({tokens[i], position, sequences.subspan(i, 1), true});
    decode();
    first_row_ = 0;
}

void check_same_vocabulary(const LlamaModel& model, const LlamaModel& draft) {
    const int size = model.vocab_size(), draft_size = draft.vocab_size();
    std::string reason;
    if (std::abs(size - draft_size) > most_padding) {
        reason = "has " + std::to_string(draft_size) + " tokens, " + model.path() + " has " + std::to_string(size);
    }
    for (Token token = 0; token < std::min(size, draft_size) && reason.empty(); ++token) {
        const std::string_view wanted = model.token_text(token), found = draft.token_text(token);
        if (wanted != found) {
            reason = "has another token " + std::to_string(token) + " (" + std::string(found) + ", not " +
                     std::string(wanted) + ")";
        }
    }
    if (!reason.empty()) throw Error(draft.path() + " " + reason + ": give a draft model of the same vocabulary");
}

}  // namespace medusa
