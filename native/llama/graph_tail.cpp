#include "llama/graph_tail.h"

#include <algorithm>

#include "llama.h"

namespace medusa {

// A chain of one sampler, as libllama wants it. It can be given to a context only once.
struct TailSamplers::Link {
    TailSamplers& owner;
    size_t share;  // how many of the tensors libllama is to reserve
    llama_sampler* chain = nullptr;

    Link(TailSamplers& samplers, size_t tensors);
    ~Link() { llama_sampler_free(chain); }
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
};

namespace {

// Besides the tail's own: libllama makes a view for each row and each sequence.
constexpr size_t tensors_per_sequence = 8;

const char* tail_name(const llama_sampler*) {
    return "medusa";
}
void leave_to_others(llama_sampler*, llama_token_data_array*) {}
bool accept_device(llama_sampler*, ggml_backend_buffer_type_t, uint32_t) {
    return true;
}

}  // namespace

TailSamplers::Link::Link(TailSamplers& samplers, size_t tensors) : owner(samplers), share(tensors) {
    static llama_sampler_i calls = [] {
        llama_sampler_i made{};
        made.name = tail_name;
        made.apply = leave_to_others;
        made.backend_init = accept_device;
        made.backend_apply = [](llama_sampler* sampler, ggml_context* c, ggml_cgraph* graph, llama_sampler_data* data) {
            const Link& link = *static_cast<Link*>(sampler->ctx);
            ggml_tensor* row = data->logits;
            data->logits = nullptr;  // or the row would come to the host
            if (!row->view_src) {    // a dry run, in which libllama counts what is made
                for (size_t i = 0; i < link.share; ++i) ggml_new_tensor_1d(c, GGML_TYPE_F32, 1);
                return;
            }
            // Rows are views of a padded copy of all rows, which nothing else computes.
            ggml_tensor* logits = row->view_src->src[0];
            if (logits->ne[1] == 0) return;
            if (link.owner.logits_ != logits) link.owner.build(c, graph, logits);
            // What is found replaces the first rows, whichever sequences libllama assigns those to.
            data->logits = link.owner.part(c, static_cast<int64_t>(row->view_offs / row->nb[1]), logits->ne[0]);
        };
        made.backend_set_input = [](llama_sampler* sampler) {
            static_cast<Link*>(sampler->ctx)->owner.tail_->set_inputs();
        };
        made.backend_reset = [](llama_sampler* sampler) { static_cast<Link*>(sampler->ctx)->owner.logits_ = nullptr; };
        return made;
    }();
    chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, llama_sampler_init(&calls, this));
}

TailSamplers::TailSamplers(std::shared_ptr<GraphTail> tail, int sequences, ggml_backend_dev_t device)
    : tail_(std::move(tail)), sequences_(sequences), device_(device) {}

TailSamplers::~TailSamplers() {
    tail_->attached_ = false;
}

void TailSamplers::make_links() {
    const auto count = static_cast<size_t>(sequences_);
    const size_t share = tail_->most_tensors() / count + tensors_per_sequence;
    for (size_t i = 0; i < count; ++i) links_.push_back(std::make_unique<Link>(*this, share));
    lacks_.clear();
    tail_->take_way(way_);
    tail_->attached_ = true;
}

std::vector<llama_sampler_seq_config> TailSamplers::configurations() {
    make_links();
    std::vector<llama_sampler_seq_config> out;
    for (int i = 0; i < sequences_; ++i) out.push_back({i, links_[static_cast<size_t>(i)]->chain});
    return out;
}

void TailSamplers::attach(llama_context* context, StepWay way) {
    way_ = way;
    for (const auto& [sequence, chain] : configurations()) llama_set_sampler(context, sequence, chain);
}

void TailSamplers::detach(llama_context* context) {
    for (int i = 0; i < sequences_; ++i) llama_set_sampler(context, i, nullptr);
    links_.clear();
    tail_->attached_ = false;
}

// What replaces row `row`: rows are fetched only as far as they hold anything.
ggml_tensor* TailSamplers::part(ggml_context* c, int64_t row, int64_t width) const {
    if (!found_ || row * width >= ggml_nelements(found_)) return nullptr;
    const int64_t count = std::min(ggml_nelements(found_) - row * width, width);
    return ggml_view_1d(c, found_, count, static_cast<size_t>(row * width) * sizeof(float));
}

void TailSamplers::build(ggml_context* c, ggml_cgraph* graph, ggml_tensor* logits) {
    logits_ = logits;
    found_ = nullptr;
    if (logits->type != GGML_TYPE_F32 || !ggml_is_contiguous(logits)) {
        lacks_ = "the model's graph has logits of another form";
        return;
    }
    ggml_tensor* states = ggml_graph_get_tensor(graph, "result_norm");
    const bool named = states && states->ne[1] == logits->ne[1] && ggml_is_contiguous(states);
    const int before = ggml_graph_n_nodes(graph);
    ggml_tensor* found = tail_->build(c, graph, logits, named ? states : nullptr);
    if (!found) {
        lacks_ = "the model's graph names no hidden states";
        return;
    }
    // A single row, as at the end of a prompt, must have enough room as well.
    const int64_t beyond = tail_->brings() ? (logits->ne[1] - 1) * tail_->numbers_of_row(logits->ne[0]) : 0;
    if (ggml_nelements(found) - beyond > logits->ne[0]) {
        lacks_ = "the vocabulary is smaller than what is found";
        return;
    }
    ggml_build_forward_expand(graph, found);
    for (int i = before; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        if (ggml_backend_dev_supports_op(device_, node)) continue;
        lacks_ = std::string(ggml_backend_dev_name(device_)) + " lacks " + ggml_op_desc(node);
        return;
    }
    if (tail_->brings()) found_ = found;
}

}  // namespace medusa
