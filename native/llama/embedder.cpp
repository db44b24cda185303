#include "llama/embedder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>

namespace medusa {
namespace {

constexpr int least_room = 512;  // tokens: short texts share a pass of as many
constexpr int most_texts = 32;   // of a pass
constexpr int piece = 128;       // rows of a decode where texts need not be whole: each has room for logits

constexpr std::array<int, most_texts> sequences = [] {
    std::array<int, most_texts> out{};
    std::iota(out.begin(), out.end(), 0);
    return out;
}();

int limit_for(const LlamaModel& model, int wanted) {
    const int trained = model.train_context();
    if (wanted > trained) {
        throw Error(model.path() + " was trained on texts of " + std::to_string(trained) + " tokens, not " +
                        std::to_string(wanted),
                    "lower {ctx_size}");
    }
    return wanted > 0 ? wanted : std::min(trained, Embedder::default_longest);
}

void normalise(std::span<float> row, const LlamaModel& model) {
    const double squares = std::inner_product(row.begin(), row.end(), row.begin(), 0.0);
    if (!std::isfinite(squares)) throw Error(model.path() + ": an embedding is not a number: the file is damaged");
    const double factor = squares > 0 ? 1 / std::sqrt(squares) : 0;
    for (float& value : row) value = static_cast<float>(value * factor);
}

}  // namespace

Embedder::Embedder(std::shared_ptr<LlamaModel> model, int longest, Threads threads)
    : model_(std::move(model)),
      pooling_(pooling_of(model_->file())),
      longest_(limit_for(*model_, longest)),
      threads_(threads) {
    make_room(least_room);
    whole_ = context_->takes_whole_texts();
}

void Embedder::make_room(int tokens) {
    if (context_ && tokens <= context_->size()) return;
    int room = least_room;
    while (room < tokens) room *= 2;
    ContextParams params;
    params.context_size = room;
    // What carries a running state along takes one text at a time.
    params.max_sequences = model_->is_recurrent() ? 1 : most_texts;
    params.batch = whole_ ? room : least_room;
    params.max_outputs = params.batch;
    params.threads = threads_;
    params.states_alone = true;
    context_.reset();  // before the larger one takes memory
    context_ = std::make_unique<LlamaContext>(model_, params);
    context_->set_hidden(true);
}

void Embedder::check(std::span<const std::vector<Token>> texts) const {
    for (size_t i = 0; i < texts.size(); ++i) {
        const std::string what = "input " + std::to_string(i) + ": ";
        if (texts[i].empty()) throw Error(what + "it is empty");
        if (texts[i].size() > static_cast<size_t>(longest_)) {
            throw Error(what + "it has " + std::to_string(texts[i].size()) + " tokens, the model takes " +
                        std::to_string(longest_));
        }
        model_->require_tokens(texts[i], what);
    }
}

size_t Embedder::next_group(std::span<const std::vector<Token>> texts) const {
    const size_t most = model_->is_recurrent() ? 1 : most_texts;
    size_t count = 1, tokens = texts.front().size();
    while (count < std::min(most, texts.size()) && tokens + texts[count].size() <= least_room) {
        tokens += texts[count++].size();
    }
    return count;
}

std::vector<float> Embedder::embed(std::span<const std::vector<Token>> texts, const StopPoll& stop) {
    check(texts);
    std::vector<float> out;
    while (!texts.empty()) {
        const size_t count = next_group(texts);
        if (!pass(texts.first(count), stop, out)) return {};
        texts = texts.subspan(count);
    }
    return out;
}

bool Embedder::pass(std::span<const std::vector<Token>> texts, const StopPoll& stop, std::vector<float>& out) {
    std::vector<BatchRow> rows;
    for (size_t text = 0; text < texts.size(); ++text) {
        int position = 0;
        for (const Token token : texts[text]) rows.push_back({token, position++, {&sequences[text], 1}, true});
    }
    make_room(static_cast<int>(rows.size()));
    context_->clear();
    context_->begin_answer();
    const auto wide = static_cast<size_t>(width());
    const size_t begin = out.size(), at_once = whole_ ? rows.size() : piece;
    out.resize(begin + texts.size() * wide);
    for (std::span<const BatchRow> left = rows; !left.empty(); left = left.subspan(std::min(at_once, left.size()))) {
        const auto part = left.first(std::min(at_once, left.size()));
        if (!whole_) context_->end_at_states();
        const DecodeStatus status = context_->decode(part, stop);
        if (status == DecodeStatus::cancelled) return false;
        if (status != DecodeStatus::ok) throw Error("the text could not be decoded: this is a bug in medusa");
        for (size_t row = 0; row < part.size(); ++row) {
            const auto text = static_cast<size_t>(part[row].sequences.front());
            const int last = static_cast<int>(texts[text].size()) - 1, wanted = pooling_ == Pooling::last ? last : 0;
            if (pooling_ != Pooling::mean && part[row].position != wanted) continue;
            const auto state = context_->hidden(static_cast<int>(row));
            float* to = out.data() + begin + text * wide;
            for (size_t i = 0; i < wide; ++i) to[i] += state[i];
        }
    }
    for (size_t at = begin; at < out.size(); at += wide) normalise({out.data() + at, wide}, *model_);
    return true;
}

}  // namespace medusa
