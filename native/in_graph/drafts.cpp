#include "in_graph/drafts.h"

#include "in_graph/medusa_drafts.h"

namespace medusa::in_graph {

std::unique_ptr<Drafts> make_drafts(std::shared_ptr<Heads> heads, const Tree& shape) {
    if (heads->metadata().kind == HeadsKind::medusa) return std::make_unique<MedusaDrafts>(std::move(heads), shape);
    return nullptr;
}

}  // namespace medusa::in_graph
