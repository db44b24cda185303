#include "in_graph/drafts.h"

#include "in_graph/hydra_drafts.h"
#include "in_graph/medusa_drafts.h"

namespace medusa::in_graph {

namespace {

int depth_of(const DraftShape& shape) {
    if (const auto* grown = std::get_if<GrownShape>(&shape)) return grown->depth;
    return std::get<Tree>(shape).depth();
}

}  // namespace

std::unique_ptr<Drafts> make_drafts(std::shared_ptr<Heads> heads, const DraftShape& shape, int context_size) {
    switch (heads->metadata().kind) {
        case HeadsKind::medusa:
            return std::make_unique<MedusaDrafts>(std::move(heads), shape);
        case HeadsKind::hydra:
            return std::make_unique<HydraDrafts>(std::move(heads), shape, nullptr);
        case HeadsKind::hydra_plus: {
            // States of the prompt are not to be had there.
            if (!heads->metadata().prefix.from_answer) return nullptr;
            auto prefix = std::make_unique<Prefix>(heads, depth_of(shape), context_size);
            return std::make_unique<HydraDrafts>(std::move(heads), shape, std::move(prefix));
        }
    }
    return nullptr;
}

}  // namespace medusa::in_graph
