#include "in_graph/drafts.h"

#include "heads/levels.h"
#include "in_graph/hydra_drafts.h"
#include "in_graph/medusa_drafts.h"

namespace medusa::in_graph {
namespace {

int depth_of(const DraftShape& shape) {
    if (const auto* grown = std::get_if<GrownShape>(&shape)) return grown->depth;
    return std::get<Tree>(shape).depth();
}

}  // namespace

ggml_tensor* Drafts::state(ggml_context* c, ggml_tensor* states, const GreedyAcceptance& accepted) {
    return prefix_ ? prefix_->build(c, states, accepted) : ggml_get_rows(c, states, accepted.index);
}

std::string heads_need(const Heads& heads) {
    const HeadsMetadata& metadata = heads.metadata();
    if (metadata.kind == HeadsKind::streams) return "streams read the KV cache of the base's layers";
    if (needs_of(heads).layer) return "the heads read the states of a lower layer";
    return "";
}

std::unique_ptr<Drafts> make_drafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size) {
    std::unique_ptr<Prefix> prefix;
    if (heads->metadata().has_prefix) prefix = std::make_unique<Prefix>(heads, depth_of(shape), context_size);
    if (heads->metadata().reads_path())
        return std::make_unique<HydraDrafts>(std::move(heads), shape, std::move(prefix));
    return std::make_unique<MedusaDrafts>(std::move(heads), shape, std::move(prefix));
}

}  // namespace medusa::in_graph
