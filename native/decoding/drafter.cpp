#include "decoding/drafter.h"

namespace medusa {

void Draft::set_root(Token root) {
    static const Tree root_only;
    tree = &root_only;
    tokens.assign(1, root);
    q.assign(1, 1.0f);
}

}  // namespace medusa
