#include "base/platform.h"
#include "heads/prefix_layer.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

class PrefixLayerBinding {
  public:
    explicit PrefixLayerBinding(std::shared_ptr<Heads> heads)
        : heads_(std::move(heads)), backend_(start_backend(heads_->device())) {
        set_threads(backend_.get(), physical_cores());
        if (!heads_->metadata().has_prefix) throw Error("these heads have no prefix layer");
        layer_ = std::make_unique<PrefixLayer>(heads_, backend_.get());
    }
    void append(int position, const StateVector& state) {
        if (static_cast<int>(state.size()) != heads_->model().embedding_size()) throw Error("a state of another size");
        layer_->append(position, {state.data(), state.size()});
    }
    void roll_back(int position) { layer_->roll_back(position); }
    size_t graph_count() const { return layer_->graph_count(); }
    NewMatrix<float> newest() {
        const auto state = layer_->newest();
        return new_matrix<float>(state.data(), 1, state.size());
    }

  private:
    std::shared_ptr<Heads> heads_;
    ggml_backend_ptr backend_;
    std::unique_ptr<PrefixLayer> layer_;
};

}  // namespace

void bind_prefix_layer(nb::module_& m) {
    nb::class_<PrefixLayerBinding>(m, "PrefixLayer", "The attention layer of Hydra++ heads by itself, with its cache.")
        .def(nb::init<std::shared_ptr<Heads>>(), "heads"_a)
        .def("append", &PrefixLayerBinding::append, "position"_a, "state"_a,
             "The token of `position`, which follows the last one, or starts the layer anew.")
        .def("roll_back", &PrefixLayerBinding::roll_back, "position"_a, "Drops the tokens from `position` on.")
        .def("newest", &PrefixLayerBinding::newest, "[1, n_embd], the layer's output at the last token.")
        .def_prop_ro("graph_count", &PrefixLayerBinding::graph_count, "Graphs that it keeps for later states.");
}

}  // namespace medusa::testing
