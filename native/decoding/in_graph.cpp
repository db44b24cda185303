#include "decoding/in_graph.h"

#include <algorithm>
#include <bit>

namespace medusa {

std::string host_reason(const StepFacts& session, const AnswerFacts& answer) {
    if (!session.on_device) return "the output matrix is on the CPU";
    if (!session.branches) return "the model carries a recurrent state";
    if (session.draft_model) return "drafts come from a draft model, or from layers for further tokens";
    if (session.lookahead) return "lookahead decoding reads the logits of all its branches";
    if (!session.heads_need.empty()) return session.heads_need;
    if (!session.lacks.empty()) return session.lacks;
    if (!answer.bare_logits) return "logits are penalized or biased";
    if (answer.greedy) return "";
    if (!answer.few_ranks) return "more than the " + std::to_string(most_ranked) + " likeliest tokens are needed";
    return "";
}

int padded_size(int nodes) {
    constexpr unsigned step = 8;  // columns of a tile
    const auto n = static_cast<unsigned>(nodes);
    return static_cast<int>(n <= step ? std::bit_ceil(n)
                                      : std::min((n + step - 1) / step * step, unsigned{Tree::max_size}));
}

Tree padded(const Tree& tree, int size) {
    std::vector<int> parents = tree.parents();
    if (tree.size() > 1) parents.resize(static_cast<size_t>(size), parents.back());
    Tree out = Tree::from_parents(parents);
    out.follow_nodes();
    return out;
}

}  // namespace medusa
