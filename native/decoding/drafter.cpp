#include "decoding/drafter.h"

namespace medusa {

void Draft::set_root(Token root) {
    static const Tree root_only;
    tree = &root_only;
    tokens.assign(1, root);
    q.assign(1, 1.0f);
    drawn.assign(1, false);
    proposals.clear();
}

void draw_children(int node, std::span<const Token> tokens, std::span<const float> q, Drawing& drawing, Draft& draft) {
    const auto& children = draft.tree->children(node);
    Proposal& proposal = draft.proposals[node];
    proposal = make_proposal(tokens, q, drawing.sampling);
    const auto drawn = draw_distinct(proposal, static_cast<int>(children.size()), drawing.random);
    for (size_t i = 0; i < children.size(); ++i) {
        const int child = children[i];
        draft.drawn[child] = i < drawn.size();
        // A proposal is a prefix of the tokens: with all of it drawn, the rest follows.
        draft.tokens[child] = draft.drawn[child] ? drawn[i].token : tokens[i];
        draft.q[child] = draft.drawn[child] ? drawn[i].p : q[i];
    }
}

}  // namespace medusa
