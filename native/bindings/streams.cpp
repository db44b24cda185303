#include "bindings/bindings.h"
#include "heads/stream_levels.h"

namespace medusa {
namespace {

using Drafts = std::vector<std::vector<std::vector<Token>>>;

Drafts draft_tokens(StreamReader& reader, const std::vector<Token>& tokens, int ranks, int first) {
    const Heads& heads = reader.heads();
    if (ranks < 1 || ranks > heads.output_rows()) throw Error("ranks must be within 1..output_rows");
    Drafts out;
    LevelDrafts level;
    const nb::gil_scoped_release released;
    reader.read(tokens, first, [&](int position, HeadsLevels& levels) {
        const std::vector<Token> path(tokens.begin() + position + 1, tokens.begin() + position + 2);
        out.emplace_back();
        for (int depth = 1; depth <= heads.head_count(); ++depth) {
            levels.level(depth, std::vector<Token>(static_cast<size_t>(depth), path.front()), ranks, level);
            out.back().push_back(level.tokens);
        }
    });
    return out;
}

}  // namespace

void bind_streams(nb::module_& m) {
    nb::class_<StreamReader>(m, "StreamReader",
                             "What streams draft along one text after another, each from an empty cache.")
        .def(nb::new_([](std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads, int longest, int n_threads) {
                 return std::make_unique<StreamReader>(std::move(model), std::move(heads), longest,
                                                       resolve_threads(n_threads));
             }),
             "model"_a, "heads"_a, "longest"_a, nb::kw_only(), "n_threads"_a = 0,
             "longest: most tokens of a text. NativeError for heads of another kind or model.")
        .def("draft_tokens", &draft_tokens, "tokens"_a, "ranks"_a, "first"_a = 0,
             "[position][stream][ranks] behind tokens[first] .. tokens[-2], the next token being the root of each.");
}

}  // namespace medusa
