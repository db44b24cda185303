#include "training/collect.h"
#include "llama/context.h"
#include "llama/sampler_chain.h"

#include <algorithm>
#include <cmath>

namespace medusa {
namespace {

// How many tokens all prompts begin with, fewer than the shortest has: the chat template's opening and system prompt.
int common_prefix(const std::vector<std::vector<Token>>& prompts) {
    if (prompts.empty()) return 0;
    const auto& first = prompts.front();
    size_t shared = first.size() - 1;
    for (const auto& prompt : prompts) {
        const size_t most = std::min(shared, prompt.size() - 1);
        shared = std::mismatch(first.begin(), first.begin() + most, prompt.begin()).first - first.begin();
    }
    return static_cast<int>(shared);
}

// A sequence of the context that works on one prompt after another.
struct Slot {
    int id = 0;
    bool busy = false;
    int position = 0;  // cells in use; when idle, by the previous text
    int row = -1;      // output row in the newest decode
    Token next = 0;    // drawn, not decoded yet
    std::unique_ptr<Chain> chain;
    Continuation work;
};

class Collector {
  public:
    Collector(std::shared_ptr<LlamaModel> model, const std::vector<std::vector<Token>>& prompts,
              const std::vector<float>& temperatures, const CollectParams& params, const OnPartial& on_partial)
        : prompts_(prompts),
          temperatures_(temperatures),
          params_(params),
          on_partial_(on_partial),
          shared_(common_prefix(prompts)),
          context_(model, sized(prompts, params)) {
        context_.set_hidden(params.hidden);
        width_ = params.hidden ? model->embedding_size() : 0;
        vocab_size_ = model->vocab_size();
        model_ = std::move(model);
        slots_.resize(params.parallel);
        for (int i = 0; i < params.parallel; ++i) slots_[i].id = i;
    }

    void run(const OnContinuation& on_done, const OnCollected& on_progress) {
        while (true) {
            for (Slot& slot : slots_) {
                if (!slot.busy && next_ < prompts_.size()) start(slot);
            }
            close_gaps();
            rows_.clear();
            for (Slot& slot : slots_) {
                if (!slot.busy) continue;
                slot.row = static_cast<int>(rows_.size());
                rows_.push_back({slot.next, slot.position++, {&slot.id, 1}, true});
            }
            if (rows_.empty()) return;
            decode();
            for (Slot& slot : slots_) {
                if (slot.busy && !take(slot, on_done)) return;
            }
            if (on_progress && !on_progress(produced_)) return hand_over(on_done);
        }
    }

  private:
    static ContextParams sized(const std::vector<std::vector<Token>>& prompts, const CollectParams& params) {
        size_t longest = 0;
        for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
        // Cells are split evenly among the sequences, in multiples of 256.
        const int per_sequence = (static_cast<int>(longest) + params.max_tokens + 255) / 256 * 256;
        ContextParams out;
        out.context_size = per_sequence * params.parallel;
        out.max_sequences = params.parallel;
        out.max_outputs = params.parallel;
        out.threads = params.threads;
        out.unified = false;
        return out;
    }

    void decode() {
        if (context_.decode(rows_, nullptr) != DecodeStatus::ok) throw Error("no room to generate", "lower {parallel}");
    }

    // Prefills the next prompt into an idle slot, up to its last token, which joins the common batch. The shared start
    // is already there from the previous text, unless the model's memory cannot be cut.
    void start(Slot& slot) {
        const bool kept = shared_ > 0 && slot.position > 0 && context_.remove(slot.id, shared_, -1);
        if (!kept) context_.remove(slot.id, -1, -1);
        const size_t index = next_++;
        const auto& prompt = prompts_[index];
        slot.busy = true;
        slot.position = kept ? shared_ : 0;
        slot.work = {index, {}, {}};
        SamplingParams sampling;
        sampling.temperature = temperatures_[index];
        slot.chain = make_chain(sampling, vocab_size_, /*context_size=*/0, prompt);
        slot.next = prompt.back();
        const size_t last = prompt.size() - 1;
        const size_t done = slot.position;
        if (done == last) return;
        // Hidden states would make every row pay for the output matrix.
        if (params_.hidden) context_.set_hidden(false);
        const size_t batch = context_.batch_size();
        for (size_t begin = done; begin < last; begin += batch) {
            rows_.clear();
            for (size_t i = begin; i < std::min<size_t>(last, begin + batch); ++i) {
                rows_.push_back({prompt[i], slot.position++, {&slot.id, 1}, false});
            }
            decode();
        }
        if (params_.hidden) context_.set_hidden(true);
    }

    // Moves the last busy slots into idle ones before them: libllama computes only neighbouring sequences together, and
    // would read the weights again for each gap.
    void close_gaps() {
        auto idle = slots_.begin(), busy = slots_.end();
        while (true) {
            idle = std::find_if(idle, busy, [](const Slot& slot) { return !slot.busy; });
            while (busy != idle && !busy[-1].busy) --busy;
            if (busy == idle) return;
            --busy;
            context_.copy(busy->id, idle->id, -1, -1);
            context_.remove(busy->id, -1, -1);
            std::swap(*idle, *busy);
            std::swap(idle->id, busy->id);
        }
    }

    // What there is of the continuations under way.
    void hand_over(const OnContinuation& on_done) const {
        for (const Slot& slot : slots_) {
            if (slot.busy && !on_done(slot.work)) return;
        }
    }

    // Draws a token from the slot's row; hands over the continuation when it is complete.
    bool take(Slot& slot, const OnContinuation& on_done) {
        slot.chain->apply(context_.logits(slot.row), distribution_);
        Continuation& work = slot.work;
        const uint64_t stream = params_.seed * 0x9E3779B97F4A7C15ull + work.index;
        slot.next = draw(distribution_, uniform(stream, work.tokens.size()));
        slot.chain->accept(slot.next);
        work.tokens.push_back(slot.next);
        ++produced_;
        if (params_.hidden) {
            const auto state = context_.hidden(slot.row);
            work.states.resize(work.states.size() + width_);
            constexpr float largest = 65504.0f;  // of half precision
            std::transform(state.begin(), state.end(), work.states.end() - width_,
                           [=](float value) { return ggml_fp32_to_fp16(std::clamp(value, -largest, largest)); });
        }
        const bool done =
            model_->is_end_of_generation(slot.next) || static_cast<int>(work.tokens.size()) >= params_.max_tokens;
        if (!done && !(on_partial_ && work.tokens.size() % partial_interval == 0 && !on_partial_(work))) return true;
        slot.busy = false;
        return on_done(work);
    }

    std::shared_ptr<LlamaModel> model_;
    const std::vector<std::vector<Token>>& prompts_;
    const std::vector<float>& temperatures_;
    CollectParams params_;
    const OnPartial& on_partial_;
    const int shared_;  // tokens that every prompt begins with
    LlamaContext context_;
    std::vector<Slot> slots_;
    std::vector<BatchRow> rows_;
    std::vector<Candidate> distribution_;
    size_t next_ = 0;
    size_t width_ = 0;
    int vocab_size_ = 0;
    uint64_t produced_ = 0;
};

}  // namespace

void collect(std::shared_ptr<LlamaModel> model, const std::vector<std::vector<Token>>& prompts,
             const std::vector<float>& temperatures, const CollectParams& params, const OnContinuation& on_done,
             const OnCollected& on_progress, const OnPartial& on_partial) {
    model->require_states();
    if (prompts.size() != temperatures.size()) throw Error("collect: one temperature per prompt is needed");
    if (params.parallel < 1 || params.parallel > Tree::max_size || params.max_tokens < 1) {
        throw Error("collect: parallel must be within 1..256 and max_tokens positive");
    }
    for (const auto& prompt : prompts) {
        if (prompt.empty()) throw Error("collect: a prompt is empty");
    }
    Collector(std::move(model), prompts, temperatures, params, on_partial).run(on_done, on_progress);
}

}  // namespace medusa
