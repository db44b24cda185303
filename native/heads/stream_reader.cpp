#include "heads/stream_reader.h"

#include <algorithm>

#include "heads/stream_levels.h"

namespace medusa {
namespace {

constexpr int sequence[] = {0};

ContextParams params_for(const Heads& heads, int longest, Threads threads) {
    if (!heads.streams()) throw Error("only streams read the context of a text");
    if (longest < 1) throw Error("streams: the longest text must have tokens");
    const DrafterNeeds needs = needs_of(heads);
    ContextParams params;
    params.context_size = longest + heads.head_count();  // cells for the streams behind those of the text
    params.threads = threads;
    params.tap_layer = needs.layer;
    params.tap_attention = needs.attention;
    return params;
}

}  // namespace

StreamReader::StreamReader(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads, int longest,
                           Threads threads)
    : heads_(std::move(heads)), longest_(longest), context_(model, params_for(*heads_, longest, threads)) {
    if (&heads_->model() != model.get()) throw Error("these heads were loaded for another model");
    levels_ = std::make_unique<StreamLevels>(
        heads_, heads_->head_count(), [most = threads.most] { return most; }, *context_.attention());
    levels_->keep_free(longest);
}

StreamReader::~StreamReader() = default;

void StreamReader::read(std::span<const Token> tokens, int first, const OnDraft& on_draft) {
    const int count = static_cast<int>(tokens.size()), vocabulary = context_.model().vocab_size();
    if (count < 1 || count > longest_ || first < 0) {
        throw Error("streams: a text of " + std::to_string(count) + " tokens, not of 1 to " + std::to_string(longest_));
    }
    for (const Token token : tokens) {
        if (token < 0 || token >= vocabulary) {
            throw Error("streams: token " + std::to_string(token) + " is not in the vocabulary");
        }
    }
    context_.clear();
    const Tree root_only;
    std::vector<BatchRow> rows;
    const int width = context_.batch_size();
    for (int begin = 0; begin < count - 1; begin += width) {
        const int end = std::min(begin + width, count - 1);
        rows.clear();
        for (int i = begin; i < end; ++i) rows.push_back({tokens[i], i, sequence, false});
        if (context_.decode(rows, nullptr) != DecodeStatus::ok) throw Error("streams: the text could not be decoded");
        for (int at = std::max(begin, first); at < end; ++at) {
            DraftInput input{tokens.first(static_cast<size_t>(at) + 2), context_.tapped(at - begin), 1, root_only};
            input.row = at - begin;
            levels_->begin(input);
            on_draft(at, *levels_);
        }
    }
}

}  // namespace medusa
