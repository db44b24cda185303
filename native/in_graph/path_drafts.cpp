// Heads that read the path in the model's own graph: the levels of a tree, one after the other.
#include "heads/graph.h"
#include "in_graph/drafts.h"
#include "in_graph/rows.h"

namespace medusa::in_graph {
namespace {

// The base's token embedding matrix where the heads run: the loaded one if it lies there, else a copy.
class DeviceEmbeddings {
  public:
    // Throws Error where the base has no usual embedding matrix, OutOfMemory where the device has no room for it.
    explicit DeviceEmbeddings(const Heads& heads) : scale_(heads.metadata().embedding_scale) {
        const LlamaModel& model = heads.model();
        const TensorInfo* info = model.file().find("token_embd.weight");
        if (!info || info->n_dims != 2 || info->ne[0] != model.embedding_size() || info->ne[1] != model.vocab_size()) {
            throw Error(model.path() + ": no token embeddings of the usual shape in this file");
        }
        for (const auto& [name, tensor] : model.tensors()) {
            if (name != "token_embd.weight" || tensor->type != info->type || !tensor->buffer) continue;
            const auto type = ggml_backend_buffer_get_type(tensor->buffer);
            if (type == ggml_backend_dev_buffer_type(heads.device())) matrix_ = tensor;
        }
        if (!matrix_) copy(heads, *info);
    }

    // Rows for tokens [n] (I32), times the heads' scale: [h, n].
    ggml_tensor* rows(ggml_context* c, ggml_tensor* tokens) const {
        ggml_tensor* found = ggml_get_rows(c, matrix_, tokens);
        return scale_ == 1.0f ? found : ggml_scale(c, found, scale_);
    }

  private:
    void copy(const Heads& heads, const TensorInfo& info) {
        matrix_ = ggml_new_tensor_2d(tensors_.context(), info.type, info.ne[0], info.ne[1]);
        tensors_.allocate(heads.device(), "a copy of the token embeddings on the device");
        copy_to_backend(heads.model().file(), {&info}, matrix_);
    }

    DeviceTensors tensors_{1};
    ggml_tensor* matrix_ = nullptr;  // [h, vocabulary]
    float scale_;
};

ggml_tensor* behind(ggml_context* c, ggml_tensor* first, ggml_tensor* rest) {
    return first ? ggml_concat(c, first, rest, 0) : rest;
}

// The nodes of grown trees below which heads are asked: the likeliest of a level, by the product of the probabilities
// on the way to them. In one graph, level by level.
class Beam {
  public:
    // The likeliest `ranks` rows of logits [rows, columns], likeliest first: [columns * ranks].
    ggml_tensor* candidates(ggml_context* c, ggml_tensor* logits, int ranks) {
        const int64_t columns = logits->ne[1], count = ranks * columns;
        // Without NaN, which cannot be sorted.
        ggml_tensor* all = ggml_leaky_relu(c, ggml_soft_max(c, logits), 1.0f, false);
        ggml_tensor* rows = largest(c, all, ranks);
        ggml_tensor* found = at_places(c, all, as_index(c, rows, logits->ne[0]));
        paths_ = reached_ ? ggml_mul(c, found, reached_) : found;
        probabilities_ = behind(c, probabilities_, ggml_reshape_1d(c, found, count));
        return ggml_reshape_1d(c, rows, count);
    }
    struct Columns {
        ggml_tensor *places, *above;  // I32 [columns]: among the newest candidates; the columns these are below
    };
    // Columns of the next level: the likeliest of the newest candidates.
    Columns choose(ggml_context* c, int columns) {
        const int64_t ranks = paths_->ne[0], above = paths_->ne[1], count = ranks * above;
        ggml_tensor* flat = ggml_reshape_2d(c, paths_, count, 1);
        ggml_tensor* places = first_sorted(c, flat, columns);  // [columns, 1]
        const auto index = [&](ggml_tensor* numbers, int64_t length) {
            return ggml_reshape_1d(c, as_index(c, numbers, length), columns);
        };
        // Each candidate's column.
        ggml_tensor* numbers = ggml_reshape_2d(c, ggml_arange(c, 0.0f, static_cast<float>(above), 1.0f), 1, above);
        ggml_tensor* column_of = ggml_reshape_2d(c, ggml_repeat_4d(c, numbers, ranks, above, 1, 1), count, 1);
        Columns chosen{};
        chosen.places = index(places, count);
        chosen.above = index(at_places(c, column_of, chosen.places), above);
        reached_ = ggml_reshape_2d(c, at_places(c, flat, chosen.places), 1, columns);
        places_ = behind(c, places_, ggml_reshape_1d(c, places, columns));
        return chosen;
    }
    // Probabilities of all candidates, then the places chosen, as F32.
    ggml_tensor* brought(ggml_context* c) const {
        return places_ ? ggml_concat(c, probabilities_, places_, 0) : probabilities_;
    }

  private:
    ggml_tensor* reached_ = nullptr;                            // [1, columns]: for nodes below which heads are asked
    ggml_tensor* paths_ = nullptr;                              // [ranks, columns]: of the newest candidates
    ggml_tensor *probabilities_ = nullptr, *places_ = nullptr;  // of all levels
};
inline constexpr size_t beam_tensors = 64;  // most for one level, without largest_tensors

class PathDrafts final : public Drafts {
  public:
    // Throws as DeviceEmbeddings does.
    PathDrafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size)
        : Drafts(std::move(heads), shape, context_size),
          embeddings_(*heads_),
          recurrent_(heads_->metadata().kind == HeadsKind::recurrent) {
        if (const auto* tree = std::get_if<Tree>(&shape)) find_columns(*tree);
        upload();
    }

    ggml_tensor* build(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) override {
        ggml_tensor* root_token = as_index(c, accepted.next, heads_->model().vocab_size());
        ggml_tensor* nodes = followed(c, state(c, states, accepted), embeddings_.rows(c, root_token));
        Beam beam;
        ggml_tensor *candidates = nullptr, *all = nullptr;
        for (size_t at = 0; at < levels_.size(); ++at) {
            if (at > 0) {
                const Beam::Columns columns = grown_ ? beam.choose(c, levels_[at].columns) : columns_[at].there;
                ggml_tensor* tokens = tokens_at(c, candidates, columns.places);
                nodes = followed(c, ggml_get_rows(c, nodes, columns.above), embeddings_.rows(c, tokens));
            }
            ggml_tensor* logits = logits_of(c, static_cast<int>(at), nodes);
            candidates = grown_ ? beam.candidates(c, logits, levels_[at].ranks)
                                : ggml_reshape_1d(c, largest(c, logits, levels_[at].ranks), levels_[at].size());
            all = behind(c, all, candidates);
        }
        return grown_ ? ggml_concat(c, all, beam.brought(c), 0) : all;
    }
    ggml_tensor* level_logits(ggml_context* c, ggml_tensor* state, int depth, ggml_tensor* paths) override {
        const int64_t h = state->ne[0], columns = paths->ne[0] / depth;
        ggml_tensor* tokens = ggml_reshape_2d(c, embeddings_.rows(c, paths), h * depth, columns);
        ggml_tensor* nodes = ggml_repeat_4d(c, state, h, columns, 1, 1);
        for (int level = 0; recurrent_ && level < depth; ++level) {
            const size_t first = static_cast<size_t>(level * h) * sizeof(float);
            nodes = followed(c, nodes, ggml_cont(c, ggml_view_2d(c, tokens, h, columns, tokens->nb[1], first)));
        }
        return logits_of(c, depth - 1, recurrent_ ? nodes : followed(c, nodes, tokens));
    }
    size_t most_tensors() const override {
        return 16 + state_tensors +
               levels_.size() * (32 + beam_tensors + largest_tensors + hydra_tensors(*heads_) + cell_tensors);
    }

  private:
    // The nodes at which a head is evaluated, below depth 1.
    struct Columns {
        std::vector<int32_t> places{};  // of each node among the candidates of the level above
        std::vector<int32_t> above{};   // the column that it hangs below
        Beam::Columns there{};          // the same on the device
    };

    // Columns in the order in which a drafter asks for them: by the first child of each.
    void find_columns(const Tree& shape) {
        std::vector<int> column(static_cast<size_t>(shape.size()), -1), found(levels_.size(), 0);
        columns_.resize(levels_.size());
        for (int node = 1; node < shape.size(); ++node) {
            const auto at = static_cast<size_t>(shape.depth_of(node) - 1);
            const int parent = shape.parent(node);
            if (column[parent] >= 0) continue;
            column[parent] = found[at]++;
            if (at == 0) continue;
            const int above = column[shape.parent(parent)];
            columns_[at].above.push_back(above);
            columns_[at].places.push_back(above * levels_[at - 1].ranks + shape.rank(parent));
        }
    }
    // What a level's heads read of its nodes, from the same of the nodes above and from the embeddings of their own
    // tokens: a path grows by an embedding, [h * (depth + 1), columns]; a recurrent state [h, columns] is replaced.
    ggml_tensor* followed(ggml_context* c, ggml_tensor* above, ggml_tensor* embeddings) const {
        return recurrent_ ? cell_states(c, *heads_, above, embeddings) : ggml_concat(c, above, embeddings, 0);
    }
    ggml_tensor* logits_of(ggml_context* c, int head, ggml_tensor* nodes) const {
        return recurrent_ ? linear(c, heads_->output(0), nodes) : hydra_logits(c, *heads_, head, nodes);
    }
    // The tokens of some candidates, I32.
    ggml_tensor* tokens_at(ggml_context* c, ggml_tensor* candidates, ggml_tensor* places) const {
        ggml_tensor* rows = ggml_get_rows(c, ggml_reshape_2d(c, candidates, 1, candidates->ne[0]), places);
        return tokens_of(c, ggml_reshape_1d(c, rows, places->ne[0]));
    }
    void upload() {
        std::vector<std::pair<ggml_tensor*, const std::vector<int32_t>*>> uploads;
        const auto declare = [&](const std::vector<int32_t>& numbers, int64_t columns, int64_t rows) {
            if (numbers.empty()) return static_cast<ggml_tensor*>(nullptr);
            uploads.emplace_back(ggml_new_tensor_2d(tensors_.context(), GGML_TYPE_I32, columns, rows), &numbers);
            return uploads.back().first;
        };
        for (Columns& level : columns_) {
            const auto count = static_cast<int64_t>(level.places.size());
            level.there.places = declare(level.places, count, 1);
            level.there.above = declare(level.above, count, 1);
        }
        const std::vector<Token>& d2t = heads_->metadata().d2t;
        token_of_row_ = declare(d2t, 1, static_cast<int64_t>(d2t.size()));
        tensors_.allocate(heads_->device(), "the shape of the tree on the device");
        for (const auto& [tensor, numbers] : uploads) {
            ggml_backend_tensor_set(tensor, numbers->data(), 0, numbers->size() * sizeof(int32_t));
        }
    }
    // Rows of the output matrices [n] -> tokens of the base, I32.
    ggml_tensor* tokens_of(ggml_context* c, ggml_tensor* rows) const {
        ggml_tensor* indices = as_index(c, rows, heads_->output_rows());
        if (!token_of_row_) return indices;
        return ggml_reshape_1d(c, ggml_get_rows(c, token_of_row_, indices), rows->ne[0]);
    }

    DeviceEmbeddings embeddings_;
    const bool recurrent_;
    std::vector<Columns> columns_;  // for depth 1, whose only column is the root, 2, ...
    DeviceTensors tensors_{2 * levels_.size() + 1};
    ggml_tensor* token_of_row_ = nullptr;  // for a draft vocabulary, on the device: I32 [1, rows]
};

}  // namespace

std::unique_ptr<Drafts> make_path_drafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size) {
    return std::make_unique<PathDrafts>(std::move(heads), shape, context_size);
}

}  // namespace medusa::in_graph
