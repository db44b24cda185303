#include "base/platform.h"
#include "bindings/bindings.h"
#include "bindings/ndarray.h"
#include "heads/levels.h"

namespace medusa {
namespace {

// One hidden state [n_embd], or those of consecutive tokens [n, n_embd], the newest last.
using States = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

const char* lm_head_name(const Heads& heads) {
    switch (heads.metadata().lm_head) {
        case LmHead::own:
            return "own";
        case LmHead::base:
            return "base";
        case LmHead::draft_vocab:
            return "draft_vocab";
    }
    return "";
}

void check_step(const Heads& heads, const States& states, std::span<const Token> path) {
    const LlamaModel& model = heads.model();
    const size_t dims = states.ndim();
    if (dims < 1 || dims > 2 || static_cast<int>(states.shape(dims - 1)) != model.embedding_size() || !states.size()) {
        throw Error("a hidden state of this model has " + std::to_string(model.embedding_size()) +
                    " numbers: give one, or rows of them");
    }
    model.require_tokens(path, "path: ");
}

int free_threads() {
    return advise_threads(physical_cores()).threads;
}

// fn(probabilities [output_rows]) for each level that `path`, the tokens from the root on, reaches; Medusa heads need
// no path.
template <typename Fn>
void along_path(std::shared_ptr<Heads> heads, const States& states, std::vector<Token> path, const Fn& fn) {
    check_step(*heads, states, path);
    const int count = heads->head_count();
    if (!heads->metadata().reads_path()) path.resize(static_cast<size_t>(count));
    if (path.empty()) throw Error("these heads read the path: give the tokens from the root on");
    const int depth = std::min(count, static_cast<int>(path.size()));
    const auto levels = make_levels(std::move(heads), depth, &free_threads);
    const size_t h = states.shape(states.ndim() - 1), n = states.size() / h;
    for (size_t i = 0; i < n; ++i) levels->committed(static_cast<int>(i), no_token, {states.data() + i * h, h});
    const Tree root_only;
    levels->begin({{path.data(), 1}, {states.data() + (n - 1) * h, h}, 1, root_only});
    for (int d = 1; d <= depth; ++d) fn(levels->probabilities(d, {path.data(), static_cast<size_t>(d)}));
}

NewMatrix<float> probabilities(std::shared_ptr<Heads> heads, const States& states, const std::vector<Token>& path) {
    std::vector<float> all;
    along_path(heads, states, path, [&](std::span<const float> p) { all.insert(all.end(), p.begin(), p.end()); });
    const auto width = static_cast<size_t>(heads->output_rows());
    return new_matrix<float>(all.data(), all.size() / width, width);
}

std::vector<std::vector<Token>> draft_tokens(std::shared_ptr<Heads> heads, const States& states, int ranks,
                                             const std::vector<Token>& path) {
    if (ranks < 1 || ranks > heads->output_rows()) throw Error("ranks must be within 1..output_rows");
    std::vector<std::vector<Token>> out;
    std::vector<int> rows;
    along_path(heads, states, path, [&](std::span<const float> p) {
        top_rows(p, ranks, rows);
        out.emplace_back();
        for (const int row : rows) out.back().push_back(heads->token(row));
    });
    return out;
}

constexpr const char* probabilities_doc =
    "hidden [n_embd] -> probabilities [head_count, output_rows] of the step that starts there.\n\n"
    "hidden can also be [n, n_embd], the states of consecutive tokens, the newest last: prefix layers read them\n"
    "all. path: token ids, the root first, then the tokens of depth 1, 2, ... that each next head is to follow.\n"
    "Medusa heads do not read it; Hydra heads do, and the result has a row for each of its first head_count tokens.";

}  // namespace

void bind_heads(nb::module_& m) {
    nb::class_<Heads>(
        m, "Heads", "Draft heads of a sidecar or single file, validated against the base, on the base's output device.")
        .def(
            "__init__",
            [](nb::pointer_and_handle<Heads> self, std::shared_ptr<LlamaModel> model, const std::string& path) {
                new (self.p) Heads(std::move(model), path);
            },
            "model"_a, "path"_a)
        .def_prop_ro("kind", [](const Heads& heads) { return heads_kind_name(heads.metadata().kind); })
        .def_prop_ro(
            "has_prefix", [](const Heads& heads) { return heads.metadata().has_prefix; },
            "Whether an attention layer over the states of all tokens comes before the heads: Hydra++, and Medusa\n"
            "heads that say so.")
        .def_prop_ro("head_count", &Heads::head_count)
        .def_prop_ro("block_count", &Heads::block_count)
        .def_prop_ro("lm_head", &lm_head_name, "\"own\" | \"base\" | \"draft_vocab\".")
        .def_prop_ro("output_rows", &Heads::output_rows,
                     "Rows of the lm_head that is read (vocabulary or draft vocabulary size).")
        .def_prop_ro(
            "accuracy", [](const Heads& heads) { return heads.metadata().accuracy; },
            "[head][rank]; empty when the file has none.")
        .def_prop_ro(
            "tree", [](const Heads& heads) { return heads.metadata().tree; },
            "Choices stored in the file; empty when it has none.")
        .def_prop_ro("nbytes", &Heads::size_bytes)
        .def("probabilities", &probabilities, "hidden"_a, "path"_a = std::vector<Token>{}, probabilities_doc)
        .def("draft_tokens", &draft_tokens, "hidden"_a, "ranks"_a, "path"_a = std::vector<Token>{},
             "The `ranks` most probable base token ids of each of the rows of probabilities(), most probable first.");
}

}  // namespace medusa
