#include "in_graph/beam.h"

#include "in_graph/rows.h"

namespace medusa::in_graph {
namespace {

ggml_tensor* behind(ggml_context* c, ggml_tensor* first, ggml_tensor* rest) {
    return first ? ggml_concat(c, first, rest, 0) : rest;
}

}  // namespace

ggml_tensor* Beam::candidates(ggml_context* c, ggml_tensor* logits, int ranks) {
    const int64_t columns = logits->ne[1], count = ranks * columns;
    // Without NaN, which would not be sorted.
    ggml_tensor* all = ggml_leaky_relu(c, ggml_soft_max(c, logits), 1.0f, false);
    ggml_tensor* rows = largest(c, all, ranks);
    ggml_tensor* found = at_places(c, all, as_index(c, rows, logits->ne[0]));
    paths_ = reached_ ? ggml_mul(c, found, reached_) : found;
    probabilities_ = behind(c, probabilities_, ggml_reshape_1d(c, found, count));
    return ggml_reshape_1d(c, rows, count);
}

Beam::Columns Beam::choose(ggml_context* c, int columns) {
    const int64_t ranks = paths_->ne[0], above = paths_->ne[1], count = ranks * above;
    ggml_tensor* flat = ggml_reshape_2d(c, paths_, count, 1);
    ggml_tensor* places = first_sorted(c, flat, columns);  // [columns, 1]
    const auto index = [&](ggml_tensor* numbers, int64_t length) {
        return ggml_reshape_1d(c, as_index(c, numbers, length), columns);
    };
    // Of each candidate its column.
    ggml_tensor* numbers = ggml_reshape_2d(c, ggml_arange(c, 0.0f, static_cast<float>(above), 1.0f), 1, above);
    ggml_tensor* column_of = ggml_reshape_2d(c, ggml_repeat_4d(c, numbers, ranks, above, 1, 1), count, 1);
    Columns chosen{};
    chosen.places = index(places, count);
    chosen.above = index(at_places(c, column_of, chosen.places), above);
    reached_ = ggml_reshape_2d(c, at_places(c, flat, chosen.places), 1, columns);
    places_ = behind(c, places_, ggml_reshape_1d(c, places, columns));
    return chosen;
}

ggml_tensor* Beam::brought(ggml_context* c) const {
    return places_ ? ggml_concat(c, probabilities_, places_, 0) : probabilities_;
}

}  // namespace medusa::in_graph
