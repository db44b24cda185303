#include "llama/context.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/buffer_type.h"
#include "kernels/cleared_buffers.h"
#include "kernels/format.h"
#include "kernels/ggml_internals.h"
#include "kernels/operators.h"
#include "llama.h"
#include "llama/backend.h"

namespace medusa {
namespace {

constexpr int cancelled = 2;  // what llama_decode() returns then
// libllama's names for states after the final norm; where they differ, nothing is saved.
constexpr std::string_view final_states = "result_embd_pooled", final_states_of_drafter = "result_norm";

// Keys and values of one head.
struct HeadSizes {
    int key, value;
};

HeadSizes head_sizes(const LlamaModel& model) {
    const int heads = std::max(llama_model_n_head(model.handle()), 1), size = model.embedding_size() / heads;
    const auto given = [&](const char* key) {
        const auto value = model.file().get_u32((model.architecture() + ".attention." + key).c_str());
        return static_cast<int>(value.value_or(static_cast<uint32_t>(size)));
    };
    return {given("key_length"), given("value_length")};
}

// ggml's flash attention on the CPU works in steps of 128 values when built for AVX512-FP16, and falls back to one
// value at a time for heads whose size is no multiple of that (3 to 7 times slower at 500 to 2000 tokens). Only where
// our own kernels do not replace it.
bool flash_attention_is_slow(const LlamaModel& model, const ContextParams& params) {
    const HeadSizes size = head_sizes(model);
    return ggml_backend_dev_type(model.output_device()) == GGML_BACKEND_DEVICE_TYPE_CPU &&
           !ggml_is_quantized(params.type_v) && size.key % 128 != 0 && kernels::buffer_type() &&
           kernels::has_avx512fp16() && !kernels::serves_attention(params.type_k, params.type_v, size.key, size.value);
}

void check_tap(const LlamaModel& model, const ContextParams& params) {
    const int last = model.layer_count() - 2;
    for (const int layer : params.tap_layers) {
        if (layer >= 0 && layer <= last) continue;
        throw Error(model.path() + ": states after layer " + std::to_string(layer) +
                    " cannot be read, those after layers 0 to " + std::to_string(last) + " can");
    }
    if (!params.unified) throw Error("states after a layer can be read from unified caches only");
}

std::unique_ptr<LayerTap> tap_for(const LlamaModel& model, const ContextParams& params) {
    if (!params.tap_attention) return std::make_unique<LayerTap>(params.tap_layers);
    const int above = params.tap_layers.front() + 1;
    return std::make_unique<LayerTap>(params.tap_layers,
                                      std::make_unique<AttentionTap>(above, model.layer_count() - above));
}

// Whether passes with different numbers of threads give the same bits, and can be repeated.
bool threads_are_free(const LlamaModel& model, const ContextParams& params) {
    const HeadSizes size = head_sizes(model);
    return kernels::serves_attention(params.type_k, params.type_v, size.key, size.value) && !model.is_recurrent();
}

// Throws Error; OutOfMemory where it does not fit.
llama_context* made_context(const LlamaModel& model, const llama_context_params& p) {
    llama_context* made = llama_init_from_model(model.handle(), p);
    if (const std::string reason = allocation_reason(); !made && !reason.empty()) {
        const bool device = ggml_backend_dev_type(model.output_device()) != GGML_BACKEND_DEVICE_TYPE_CPU;
        throw OutOfMemory("no memory for a context of " + std::to_string(p.n_ctx) + " tokens" + reason,
                          device ? "lower {ctx_size} or {n_gpu_layers}, or choose smaller cache types"
                                 : "lower {ctx_size}, or choose smaller cache types");
    }
    if (!made) {
        throw Error("cannot make a context of " + std::to_string(p.n_ctx) + " tokens" + log_reason(),
                    "lower {ctx_size} or choose other cache types");
    }
    return made;
}

// With a device, the processor's threads have little to do.
Threads threads_for(const LlamaModel& model, Threads wanted) {
    wanted.adapt &= ggml_backend_dev_type(model.output_device()) == GGML_BACKEND_DEVICE_TYPE_CPU;
    return wanted;
}

// Some backends (Vulkan) throw when their device is lost.
template <typename Call>
auto guarded(Call&& call) {
    try {
        return call();
    } catch (const std::exception& failure) {
        throw Error(std::string("the device failed (") + failure.what() + ")", "try again, or use {device} none");
    }
}

// Without taps, tails or callbacks.
llama_context_params plain_params(const LlamaModel& model, const ContextParams& params) {
    auto p = llama_context_default_params();
    p.n_ctx = std::max(params.context_size, 256);  // libllama's granularity; it also limits the batch size
    p.n_batch = p.n_ubatch = params.batch;
    p.n_seq_max = params.max_sequences;
    p.n_rs_seq = params.snapshots;
    p.n_threads = p.n_threads_batch = params.threads.most;
    p.type_k = params.type_k;
    p.type_v = params.type_v;
    p.kv_unified = params.unified;
    // A cache that two contexts read lies in the way of attention that its owner has.
    const LlamaModel& owner = params.other ? params.other->model() : model;
    if (flash_attention_is_slow(owner, params)) p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.swa_full = true;  // a window-sized cache does not reuse the cells that several sequences share
    p.pooling_type = LLAMA_POOLING_TYPE_NONE;
    if (params.next_layer && !model.reads_inner_states()) p.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
    if (params.other) p.ctx_other = params.other->handle();
    return p;
}

}  // namespace

// Arrays for one llama_batch, reused from step to step.
struct LlamaContext::Batch {
    std::vector<llama_token> tokens;
    std::vector<llama_pos> positions;
    std::vector<int32_t> sequence_counts;
    std::vector<llama_seq_id*> sequences;
    std::vector<int8_t> outputs;
    std::vector<float> states;

    llama_batch fill(std::span<const BatchRow> rows) {
        const bool has_tokens = rows.empty() || rows.front().token != no_token;
        tokens.clear(), positions.clear(), sequence_counts.clear(), sequences.clear(), outputs.clear(), states.clear();
        for (const BatchRow& row : rows) {
            tokens.push_back(row.token);
            positions.push_back(row.position);
            sequence_counts.push_back(static_cast<int32_t>(row.sequences.size()));
            sequences.push_back(const_cast<llama_seq_id*>(row.sequences.data()));  // libllama only reads them
            outputs.push_back(row.output);
            states.insert(states.end(), row.state.begin(), row.state.end());
        }
        return {static_cast<int32_t>(rows.size()),
                has_tokens ? tokens.data() : nullptr,
                states.empty() ? nullptr : states.data(),
                positions.data(),
                sequence_counts.data(),
                sequences.data(),
                outputs.data()};
    }
};

LlamaContext::LlamaContext(std::shared_ptr<LlamaModel> model, const ContextParams& params)
    : model_(std::move(model)),
      threads_(threads_for(*model_, params.threads)),
      batch_(std::make_unique<Batch>()),
      states_(params.next_layer ? final_states_of_drafter : final_states) {
    initialise_backend();
    if (!threads_are_free(*model_, params)) threads_.keep_within_answers();
    auto p = plain_params(*model_, params);
    llama_sampler_seq_config tap_config = {};
    if (!params.tap_layers.empty()) {
        check_tap(*model_, params);
        tap_ = tap_for(*model_, params);
        tap_config = {static_cast<llama_seq_id>(p.n_seq_max++), tap_->sampler()};
        p.samplers = &tap_config;
        p.n_samplers = 1;
    }
    // Output buffers are sized for this many rows of logits; libllama aborts beyond that.
    p.n_outputs_max = std::max(params.max_outputs, static_cast<int>(p.n_seq_max));
    p.abort_callback = [](void* data) {
        auto* self = static_cast<LlamaContext*>(data);
        return (self->stop_ && self->stop_()) || self->threads_.gives_up();
    };
    p.abort_callback_data = this;
    const auto place = ggml_backend_dev_type(model_->output_device());
    if (params.states_alone && place == GGML_BACKEND_DEVICE_TYPE_CPU) {
        p.cb_eval = goes_on;
        p.cb_eval_user_data = this;
    }
    std::vector<llama_sampler_seq_config> samplers;
    if (params.tail) {
        tail_ = std::make_unique<TailSamplers>(params.tail, params.max_sequences, model_->output_device());
        samplers = tail_->configurations();
        p.samplers = samplers.data();
        p.n_samplers = samplers.size();
        p.n_outputs_max_per_seq = p.n_outputs_max;
    }
    context_ = made_context(*model_, p);
    if (params.next_states || params.next_layer) {
        llama_set_embeddings_nextn(context_, true, /*masked=*/!params.next_states);
    }
    // A block's tokens see one another.
    if (model_->drafts_blocks())
        llama_set_causal_attn(context_, model_->file().get_bool("dflash.attention.causal").value_or(false));
    if (tail_ && !tail_->lacks().empty()) {
        tail_lacks_ = tail_->lacks();
        tail_->detach(context_);
        tail_.reset();
    }
    if (attention() && !attention()->lacks().empty()) {
        llama_free(context_);
        throw Error(model_->path() + ": streams do not support its attention (" + attention()->lacks() + ")",
                    "use {no_spec}, or leave the cache types and kernels as they are");
    }
}

// libllama asks before each node of a graph; false after a node whose values were requested ends the computation there.
bool LlamaContext::goes_on(ggml_tensor* node, bool ask, void* self) {
    const auto* context = static_cast<LlamaContext*>(self);
    return ask && context->ends_at_states_ && ggml_get_name(node) == context->states_;
}

LlamaContext::~LlamaContext() {
    llama_free(context_);
}
int LlamaContext::size() const {
    return static_cast<int>(llama_n_ctx(context_));
}
int LlamaContext::snapshots() const {
    return static_cast<int>(llama_n_rs_seq(context_));
}
int LlamaContext::batch_size() const {
    return static_cast<int>(llama_n_batch(context_));
}
// Our kernels are faster over fewer tokens than libllama's 512: what one layer passes to the next stays in the
// second-level cache. Experts get few tokens of each piece anyway, and their weights are read for every piece.
int LlamaContext::piece_size() const {
    const bool on_cpu = ggml_backend_dev_type(model_->output_device()) == GGML_BACKEND_DEVICE_TYPE_CPU;
    const bool dense = !model_->has_experts() && !model_->is_recurrent();
    return on_cpu && dense && kernels::kernels_used() ? 128 : batch_size();
}
// Encoders have no memory for the keys of earlier decodes; the graph of llama-embed does not read the one it has.
bool LlamaContext::takes_whole_texts() const {
    return model_->architecture() == "llama-embed" || !llama_get_memory(context_) || !llama_get_causal_attn(context_);
}
void LlamaContext::set_hidden(bool on) {
    llama_set_embeddings(context_, on);
}

int LlamaContext::run(int rows, const std::function<int()>& pass, const std::function<void()>& take_back) {
    for (;;) {
        const int threads = threads_.begin(rows);
        llama_set_n_threads(context_, threads, threads);
        const int attention_left = kernels::attention_use().left;
        const int status = guarded(pass);
        // llama.cpp's own attention may divide a row's cells among the threads.
        if (kernels::attention_use().left != attention_left) threads_.keep_within_answers();
        if (!threads_.end(status == cancelled)) return status;
        take_back();
    }
}

// Removes what an abandoned pass has left in the cache.
void LlamaContext::take_back(std::span<const BatchRow> rows) {
    for (const BatchRow& row : rows) {
        for (const int sequence : row.sequences) remove(sequence, row.position, -1);
    }
}

DecodeStatus LlamaContext::decode(std::span<const BatchRow> rows, const StopPoll& stop) {
    stop_ = stop;
    rows_ = static_cast<int>(rows.size());
    if (tap_) tap_->forget();
    ends_at_states_ = std::exchange(next_ends_at_states_, false);
    if (tail_ && tail_->tail().attached()) llama_set_nextn_layer_offset(context_, tail_->tail().kind());
    const int status = run(rows_, [&] { return llama_decode(context_, batch_->fill(rows)); }, [&] { take_back(rows); });
    stop_ = nullptr;
    if (status == 0) return DecodeStatus::ok;
    if (status == 1) return DecodeStatus::context_full;
    if (status == cancelled) return DecodeStatus::cancelled;
    throw Error("llama_decode failed with status " + std::to_string(status) + log_reason(),
                "lower {ctx_size} or {n_gpu_layers}, or use {device} none");
}

void LlamaContext::synchronize() const {
    guarded([&] { return llama_synchronize(context_), 0; });
}

StepWay LlamaContext::take_way(StepWay wanted) {
    if (!tail_) return StepWay::host;
    const bool attached = tail_->tail().attached();
    if (attached ? wanted == tail_->way() : wanted == StepWay::host) return wanted;
    if (attached) tail_->detach(context_);
    if (wanted != StepWay::host) tail_->attach(context_, wanted);
    return wanted;
}

int LlamaContext::reused_graphs() const {
    return llama_perf_context(context_).n_reused;
}

std::span<const float> LlamaContext::found() {
    found_.clear();
    for (int row = 0; row < rows_; ++row) {
        const float* data = guarded([&] { return llama_get_sampled_logits_ith(context_, row); });
        const size_t count = data ? llama_get_sampled_logits_count_ith(context_, row) : 0;
        if (count == 0) break;
        found_.insert(found_.end(), data, data + count);
    }
    if (found_.empty()) throw Error("the model's graph returned nothing: this is a bug in medusa");
    return found_;
}

std::span<const float> LlamaContext::logits(int row) {
    if (tail_ && tail_->tail().attached()) {
        const ggml_tensor* rows = tail_->logits();
        row_.resize(static_cast<size_t>(rows->ne[0]));
        guarded([&] {
            ggml_backend_tensor_get(rows, row_.data(), static_cast<size_t>(row) * rows->nb[1], rows->nb[1]);
            return 0;
        });
        return row_;
    }
    const float* data = guarded([&] { return llama_get_logits_ith(context_, row); });
    if (!data) throw Error("no logits for row " + std::to_string(row) + " of the last decode");
    return {data, static_cast<size_t>(model_->vocab_size())};
}

std::span<const float> LlamaContext::hidden(int row) const {
    const float* data = guarded([&] { return llama_get_embeddings_ith(context_, row); });
    if (!data) throw Error("this model gives no hidden states", "run it with {no_spec}");
    return {data, static_cast<size_t>(model_->embedding_size())};
}

std::span<const float> LlamaContext::next_state(int row) const {
    const float* data = guarded([&] { return llama_get_embeddings_nextn_ith(context_, row); });
    if (!data) throw Error("this model gives no states for further tokens", "run it with {no_drafter}");
    return {data, static_cast<size_t>(model_->embedding_size())};
}

void LlamaContext::use_next_layer(int layer) {
    llama_set_nextn_layer_offset(context_, layer);
}

std::vector<float> LlamaContext::encode(std::span<const float> states, size_t wide) {
    llama_batch batch = {};
    batch.n_tokens = rows_ = static_cast<int>(states.size() / wide);
    batch.embd = const_cast<float*>(states.data());  // libllama only reads them
    const int status = run(rows_, [&] { return llama_encode(context_, batch); }, [] {});
    if (status != 0) throw Error("llama_encode failed with status " + std::to_string(status) + log_reason());
    std::vector<float> out;
    for (int row = 0; row < rows_; ++row) {
        const std::span<const float> made = next_state(row);
        out.insert(out.end(), made.begin(), made.end());
    }
    return out;
}

std::span<const float> LlamaContext::tapped(int row) const {
    synchronize();
    return guarded([&] { return tap_->row(row, rows_); });
}

bool LlamaContext::remove(int sequence, int from, int to) {
    return llama_memory_seq_rm(llama_get_memory(context_), sequence, from, to);
}

void LlamaContext::copy(int source, int target, int from, int to) {
    llama_memory_seq_cp(llama_get_memory(context_), source, target, from, to);
}

// libllama drops the oldest positions first. For a hybrid memory it only tells where the running state is.
int LlamaContext::shortest() {
    const int window = llama_model_n_swa(model_->handle());
    const int first = llama_memory_seq_pos_min(llama_get_memory(context_), 0);
    return window == 0 || first <= 0 ? 0 : first + window;
}

// Leaves out attention's cells: they can be cut.
std::vector<uint8_t> LlamaContext::state() {
    std::vector<uint8_t> out(llama_state_seq_get_size_ext(context_, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY));
    const size_t written =
        llama_state_seq_get_data_ext(context_, out.data(), out.size(), 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    out.resize(written);
    return out;
}

bool LlamaContext::set_state(std::span<const uint8_t> state) {
    return llama_state_seq_set_data_ext(context_, state.data(), state.size(), 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) ==
           state.size();
}

// Not by sequence: that would leave out the cells that a sliding window hides from the next token, and without them the
// cache could not be cut.
void LlamaContext::save_all(StateWriter& out) {
    const size_t size = llama_state_get_size(context_);
    out.number<uint64_t>(size);
    const std::span<uint8_t> room = out.room(size);
    if (!room.empty() && llama_state_get_data(context_, room.data(), size) != size) {
        throw Error("llama.cpp did not save its cache" + log_reason());
    }
}

bool LlamaContext::set_all(StateReader& in) {
    const auto state = in.bytes(in.number<uint64_t>());
    return llama_state_set_data(context_, state.data(), state.size()) == state.size();
}

int LlamaContext::end() const {
    return llama_memory_seq_pos_max(llama_get_memory(context_), 0) + 1;
}

void LlamaContext::clear() {
    // Clears with zeros where that costs nothing and gives memory back.
    const bool on_cpu = ggml_backend_dev_type(model_->output_device()) == GGML_BACKEND_DEVICE_TYPE_CPU;
    llama_memory_clear(llama_get_memory(context_), on_cpu && kernels::buffers_are_lazy());
}

}  // namespace medusa
