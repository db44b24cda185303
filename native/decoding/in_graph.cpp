#include "decoding/in_graph.h"

namespace medusa {

std::string host_reason(const StepFacts& session, const AnswerFacts& answer) {
    if (!session.on_device) return "the output matrix is on the CPU";
    if (!session.branches) return "the model carries a recurrent state";
    if (!session.heads_alone) return "not the heads alone draft";
    if (!session.fixed_tree) return "trees are dynamic";
    if (!session.heads_fit) return "the heads read the states of the whole prompt";
    if (!session.lacks.empty()) return session.lacks;
    if (!answer.greedy) return "tokens are sampled";
    if (!answer.bare_logits) return "logits are penalized or biased";
    return "";
}

}  // namespace medusa
