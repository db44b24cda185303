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

// libllama's own samplers, so that every setting means what it means there.
class LlamaChain final : public Chain {
  public:
    LlamaChain(SamplerPtr chain, bool argmax_only, bool stateless, int top_k)
        : chain_(std::move(chain)), argmax_only_(argmax_only), stateless_(stateless), top_k_(top_k) {}

    void apply(std::span<const float> logits, std::vector<Candidate>& out) override {
        out.clear();
        if (argmax_only_ && stateless_) {
            out.push_back({argmax(logits), 1.0f});
            return;
        }
        if (stateless_ && top_k_ > 0) {
            // libllama's top-k leaves the same candidates, after copying the whole vocabulary.
            top_indices(logits, top_k_, top_);
            candidates_.clear();
            for (const int i : top_) candidates_.push_back({static_cast<llama_token>(i), logits[i], 0.0f});
        } else {
            candidates_.resize(logits.size());
            for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
        }
        distribute(out);
    }

    void apply(std::span<const RankedToken> ranked, std::vector<Candidate>& out) override {
        const size_t count = argmax_only_ ? 1 : std::min(ranked.size(), static_cast<size_t>(top_k_));
        candidates_.clear();
        for (const RankedToken& token : ranked.first(count)) candidates_.push_back({token.token, token.logit, 0.0f});
        out.clear();
        distribute(out);
    }

    void accept(Token token) override {
        if (!stateless_) llama_sampler_accept(chain_.get(), token);
    }

    std::unique_ptr<Chain> clone() const override {
        return std::make_unique<LlamaChain>(SamplerPtr(llama_sampler_clone(chain_.get())), argmax_only_, stateless_,
                                            top_k_);
    }

  private:
    void distribute(std::vector<Candidate>& out) {
        llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
        llama_sampler_apply(chain_.get(), &array);
        const auto* best = std::max_element(array.data, array.data + array.size, [](const auto& a, const auto& b) {
            return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
        });
        if (argmax_only_) {
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

    SamplerPtr chain_;
    bool argmax_only_;
    bool stateless_;  // neither bias nor penalty: the logits decide alone
    int top_k_;
    std::vector<int> top_;
    std::vector<llama_token_data> candidates_;
};

}  // namespace

std::unique_ptr<Chain> make_chain(const SamplingParams& params, int vocab_size, std::span<const Token> prompt) {
    SamplerPtr chain(llama_sampler_chain_init({/*no_perf=*/true}));
    const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(chain.get(), sampler); };
    const bool argmax_only = params.temperature <= 0.0f;
    if (!params.logit_bias.empty()) {
        std::vector<llama_logit_bias> bias;
        for (const auto& [token, value] : params.logit_bias) {
            if (token < 0 || token >= vocab_size) {
                throw Error("logit bias: token " + std::to_string(token) + " is not in the vocabulary");
            }
            bias.push_back({token, value});
        }
        add(llama_sampler_init_logit_bias(vocab_size, static_cast<int32_t>(bias.size()), bias.data()));
    }
    if (params.penalizes()) {
        const int window = std::max(params.repeat_last_n, 0);
        llama_sampler* penalties = llama_sampler_init_penalties(vocab_size, window, params.repeat_penalty,
                                                                params.frequency_penalty, params.presence_penalty);
        const size_t skip = prompt.size() > static_cast<size_t>(window) ? prompt.size() - window : 0;
        for (const Token token : prompt.subspan(skip)) llama_sampler_accept(penalties, token);
        add(penalties);
    }
    const bool stateless = llama_sampler_chain_n(chain.get()) == 0;
    if (!argmax_only) {
        if (params.top_k > 0) add(llama_sampler_init_top_k(params.top_k));
        if (params.top_p < 1.0f) add(llama_sampler_init_top_p(params.top_p, 1));
        if (params.min_p > 0.0f) add(llama_sampler_init_min_p(params.min_p, 1));
        add(llama_sampler_init_temp(params.temperature));
    }
    return std::make_unique<LlamaChain>(std::move(chain), argmax_only, stateless, params.top_k);
}

}  // namespace medusa
