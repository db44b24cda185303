#include "drafting/heads_drafter.h"
#include "heads/levels.h"
#include "heads/stream_levels.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

std::pair<std::vector<Token>, std::vector<float>> draft(std::shared_ptr<Heads> heads, const StateVector& hidden,
                                                        Token root, const Tree& tree) {
    if (tree.depth() > heads->head_count() || tree.max_rank() >= heads->output_rows()) {
        throw Error("this tree is deeper or wider than the heads can fill");
    }
    HeadsDrafter drafter(make_levels(heads, std::max(tree.depth(), 1), [] { return 1; }), heads->output_rows());
    const std::span state(hidden.data(), hidden.size());
    drafter.committed(0, no_token, state);
    Draft out;
    out.set_root(root);
    drafter.draft({{&root, 1}, state, tree.size(), tree}, out);
    return {out.tokens, out.q};
}

NewMatrix<float> stream_probabilities(StreamReader& reader, const std::vector<Token>& tokens) {
    const size_t streams = static_cast<size_t>(reader.heads().head_count());
    std::vector<float> all;
    reader.read(tokens, static_cast<int>(tokens.size()) - 2, [&](int, HeadsLevels& levels) {
        for (int depth = 1; depth <= static_cast<int>(streams); ++depth) {
            const auto row = levels.probabilities(depth, {});
            all.insert(all.end(), row.begin(), row.begin() + reader.heads().output_rows());
        }
    });
    return new_matrix<float>(all.data(), streams, all.size() / streams);
}

}  // namespace

void bind_heads(nb::module_& m) {
    m.def("draft", &draft, "heads"_a, "hidden"_a, "root"_a, "tree"_a,
          "Fills a tree behind a hidden state [n_embd]: the token of each node (the root first), and its probability\n"
          "given the path to it.");
    m.def("stream_probabilities", &stream_probabilities, "reader"_a, "tokens"_a,
          "[streams, output_rows] behind tokens[-2], with tokens[-1] as the root.");
}

}  // namespace medusa::testing
