#include "decoding/tree.h"

#include "bindings/bindings.h"

namespace medusa {

void bind_tree(nb::module_& m) {
    nb::class_<Tree>(m, "Tree",
                     "Static draft tree. Node 0 is the root; nodes 1.. are the choices, stably ordered by depth.")
        .def(nb::init<std::vector<Choice>>(), "choices"_a,
             "choices: paths of ranks. NativeError for duplicates, empty or negative entries, orphans, over 255 nodes.")
        .def("clipped", &Tree::clipped, "head_count"_a, "ranks"_a, "max_nodes"_a = Tree::max_size,
             "Without the choices deeper than head_count or with a rank >= ranks; at most max_nodes nodes with root.")
        .def_prop_ro("choices", &Tree::choices)
        .def_prop_ro("size", &Tree::size, "Nodes including the root.")
        .def_prop_ro("depth", &Tree::depth, "Deepest drafted depth (0: root only).")
        .def_prop_ro("max_rank", &Tree::max_rank, "Largest rank used, -1 when there is none.")
        .def_prop_ro("leaf_count", &Tree::leaf_count)
        .def_prop_ro("parents", &Tree::parents, "Parent index of each node; -1 for the root.");
}

}  // namespace medusa
