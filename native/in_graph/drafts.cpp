#include "in_graph/drafts.h"

#include "in_graph/hydra_drafts.h"
#include "in_graph/medusa_drafts.h"

namespace medusa::in_graph {

std::unique_ptr<Drafts> make_drafts(std::shared_ptr<Heads> heads, const Tree& shape) {
    switch (heads->metadata().kind) {
        case HeadsKind::medusa:
            return std::make_unique<MedusaDrafts>(std::move(heads), shape);
        case HeadsKind::hydra:
            return std::make_unique<HydraDrafts>(std::move(heads), shape);
        case HeadsKind::hydra_plus:
        case HeadsKind::streams:
            break;
    }
    return nullptr;
}

}  // namespace medusa::in_graph
