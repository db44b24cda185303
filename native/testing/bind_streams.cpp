#include "heads/levels.h"
#include "llama/target.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

// Lets a test choose what is verified, accepted and taken back.
class StreamProbe {
  public:
    StreamProbe(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads, int context_size)
        : heads_(std::move(heads)) {
        const DrafterNeeds needs = needs_of(*heads_);
        ContextParams params;
        params.context_size = context_size;
        params.tap_layers = needs.layers;
        params.tap_attention = needs.attention;
        constexpr TreeBounds bounds{24, 64};
        target_ = std::make_unique<LlamaTarget>(std::move(model), params, bounds, needs.hidden);
        levels_ = make_levels(
            heads_, heads_->head_count(), [this] { return target_->thread_use().threads; }, target_->attention());
    }

    void prefill(const std::vector<Token>& tokens) { done(target_->prefill(tokens, nullptr)); }
    void verify(const Tree& tree, const std::vector<Token>& tokens) { done(target_->verify(tree, tokens, nullptr)); }
    void commit(const Tree& tree, const std::vector<int>& path) { target_->commit(tree, path); }
    void discard() { target_->discard(); }
    int truncate(int count) { return target_->truncate(count); }
    NewMatrix<float> logits(int row) {
        const auto found = target_->logits(row);
        return new_matrix<float>(found.data(), 1, found.size());
    }
    NewMatrix<float> probabilities(const std::vector<Token>& context, int row) {
        const Tree root_only;
        DraftInput input{context, target_->hidden(row), 1, root_only};
        input.row = row;
        levels_->begin(input);
        std::vector<float> all;
        for (int depth = 1; depth <= heads_->head_count(); ++depth) {
            const auto found = levels_->probabilities(depth, {}).first(static_cast<size_t>(heads_->output_rows()));
            all.insert(all.end(), found.begin(), found.end());
        }
        return new_matrix<float>(all.data(), static_cast<size_t>(heads_->head_count()),
                                 static_cast<size_t>(heads_->output_rows()));
    }

  private:
    static void done(DecodeStatus status) {
        if (status != DecodeStatus::ok) throw Error("the context is full");
    }

    std::shared_ptr<Heads> heads_;
    std::unique_ptr<LlamaTarget> target_;
    std::unique_ptr<HeadsLevels> levels_;
};

}  // namespace

void bind_streams(nb::module_& m) {
    nb::class_<StreamProbe>(m, "StreamProbe", "A target and its streams without a session.")
        .def(nb::init<std::shared_ptr<LlamaModel>, std::shared_ptr<Heads>, int>(), "model"_a, "heads"_a, "n_ctx"_a)
        .def("prefill", &StreamProbe::prefill, "tokens"_a)
        .def("verify", &StreamProbe::verify, "tree"_a, "tokens"_a)
        .def("commit", &StreamProbe::commit, "tree"_a, "path"_a)
        .def("discard", &StreamProbe::discard)
        .def("truncate", &StreamProbe::truncate, "count"_a)
        .def("logits", &StreamProbe::logits, "row"_a, "[1, n_vocab], behind a row of the newest decode.")
        .def("probabilities", &StreamProbe::probabilities, "context"_a, "row"_a,
             "[streams, output_rows]. context: the committed tokens, whose last one is that row's, and the root.");
}

}  // namespace medusa::testing
