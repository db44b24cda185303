#include "llama/sampler_chain.h"

#include <algorithm>
#include <cmath>

#include "llama.h"

namespace medusa {
namespace {

struct SamplerFree {
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerFree>;

// libllama's own samplers, so that every setting means what it means there: first those that change logits (biases,
// penalties), then those that drop candidates.
class LlamaChain final : public Chain {
  public:
    // only_lowers: no logit is ever raised.
    LlamaChain(SamplerPtr changes, bool only_lowers, SamplerPtr truncation, bool greedy, int top_k)
        : changes_(std::move(changes)),
          truncation_(std::move(truncation)),
          greedy_(greedy),
          only_lowers_(only_lowers),
          most_(greedy      ? 1
                : top_k > 0 ? static_cast<size_t>(top_k)
                            : 0) {}

    void apply(std::span<const float> logits, std::vector<Candidate>& out) override {
        out.clear();
        if (greedy_ && !changes_) {
            out.push_back({argmax(logits), 1.0f});
            return;
        }
        if (most_ == 0 || (changes_ && !only_lowers_) || !change_likeliest(logits)) change_all(logits);
        distribute(out);
    }

    void apply(std::span<const RankedToken> ranked, std::vector<Candidate>& out) override {
        candidates_.clear();
        for (const RankedToken& token : ranked.first(std::min(ranked.size(), most_))) add(token.token, token.logit);
        out.clear();
        distribute(out);
    }

    void accept(Token token) override {
        if (changes_) llama_sampler_accept(changes_.get(), token);
    }

    std::unique_ptr<Chain> clone() const override {
        SamplerPtr changes(changes_ ? llama_sampler_clone(changes_.get()) : nullptr);
        return std::make_unique<LlamaChain>(std::move(changes), only_lowers_,
                                            SamplerPtr(llama_sampler_clone(truncation_.get())), greedy_,
                                            static_cast<int>(most_));
    }

  private:
    void add(Token token, float logit) {
        if (logit == logit) candidates_.push_back({token, logit, 0.0f});  // libllama asserts that there is no NaN
    }

    void change() {
        if (!changes_) return;
        llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
        llama_sampler_apply(changes_.get(), &array);
    }

    void change_all(std::span<const float> logits) {
        candidates_.clear();
        for (size_t i = 0; i < logits.size(); ++i) add(static_cast<Token>(i), logits[i]);
        change();
    }

    // The likeliest tokens and some to spare. A token that is lowered can only make room for one that is not: the
    // likeliest ones after the change are among them, unless more were lowered than there are to spare (then false).
    bool change_likeliest(std::span<const float> logits) {
        constexpr size_t spare = 64;
        top_indices(logits, static_cast<int>(most_ + (changes_ ? spare : 0)), top_);
        candidates_.clear();
        for (const int i : top_) add(i, logits[static_cast<size_t>(i)]);
        change();
        size_t lowered = 0;
        for (const llama_token_data& one : candidates_) lowered += one.logit != logits[static_cast<size_t>(one.id)];
        return lowered <= spare;
    }

    void distribute(std::vector<Candidate>& out) {
        if (candidates_.empty()) throw BadLogits();
        llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
        llama_sampler_apply(truncation_.get(), &array);
        const auto* best = std::max_element(array.data, array.data + array.size, [](const auto& a, const auto& b) {
            return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
        });
        if (!std::isfinite(best->logit)) throw BadLogits();
        if (greedy_) {
            out.push_back({best->id, 1.0f});
            return;
        }
        double sum = 0.0;
        for (size_t i = 0; i < array.size; ++i) {
            const float p = std::exp(array.data[i].logit - best->logit);
            if (p > 0.0f) out.push_back({array.data[i].id, p});
            sum += p;
        }
        for (Candidate& candidate : out) candidate.p = static_cast<float>(candidate.p / sum);
        std::sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    }

    SamplerPtr changes_;  // null: the logits stay as they are
    SamplerPtr truncation_;
    bool greedy_, only_lowers_;
    size_t most_;  // how many of the likeliest tokens count; 0: all
    std::vector<int> top_;
    std::vector<llama_token_data> candidates_;
};

SamplerPtr empty_chain() {
    return SamplerPtr(llama_sampler_chain_init({/*no_perf=*/true}));
}

SamplerPtr biases(const SamplingParams& params, int vocab_size) {
    std::vector<llama_logit_bias> bias;
    for (const auto& [token, value] : params.logit_bias) {
        if (token < 0 || token >= vocab_size) {
            throw Error("logit bias: token " + std::to_string(token) + " is not in the vocabulary");
        }
        bias.push_back({token, value});
    }
    return SamplerPtr(llama_sampler_init_logit_bias(vocab_size, static_cast<int32_t>(bias.size()), bias.data()));
}

SamplerPtr penalties(const SamplingParams& params, int vocab_size, int context_size, std::span<const Token> prompt) {
    const int window = params.repeat_last_n < 0 ? context_size : std::min(params.repeat_last_n, context_size);
    SamplerPtr sampler(llama_sampler_init_penalties(vocab_size, window, params.repeat_penalty, params.frequency_penalty,
                                                    params.presence_penalty));
    const size_t skip = prompt.size() > static_cast<size_t>(window) ? prompt.size() - window : 0;
    for (const Token token : prompt.subspan(skip)) llama_sampler_accept(sampler.get(), token);
    return sampler;
}

}  // namespace

std::unique_ptr<Chain> make_chain(const SamplingParams& params, int vocab_size, int context_size,
                                  std::span<const Token> prompt) {
    SamplerPtr changes;
    if (params.changes_logits()) {
        changes = empty_chain();
        const auto add = [&](SamplerPtr sampler) { llama_sampler_chain_add(changes.get(), sampler.release()); };
        if (!params.logit_bias.empty()) add(biases(params, vocab_size));
        if (params.penalizes()) add(penalties(params, vocab_size, context_size, prompt));
    }
    const bool only_lowers =
        params.repeat_penalty >= 1.0f && params.frequency_penalty >= 0.0f && params.presence_penalty >= 0.0f &&
        std::all_of(params.logit_bias.begin(), params.logit_bias.end(), [](const auto& b) { return b.second <= 0; });
    SamplerPtr truncation = empty_chain();
    if (!params.is_greedy()) {
        const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(truncation.get(), sampler); };
        if (params.top_k > 0) add(llama_sampler_init_top_k(params.top_k));
        if (params.top_p < 1.0f) add(llama_sampler_init_top_p(params.top_p, 1));
        if (params.min_p > 0.0f) add(llama_sampler_init_min_p(params.min_p, 1));
        add(llama_sampler_init_temp(params.temperature));
    }
    return std::make_unique<LlamaChain>(std::move(changes), only_lowers, std::move(truncation), params.is_greedy(),
                                        params.top_k);
}

}  // namespace medusa
