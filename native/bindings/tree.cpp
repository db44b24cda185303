#include "decoding/tree.h"

#include "bindings/bindings.h"

namespace medusa {

void bind_tree(nb::module_& m) {
    nb::class_<Tree>(m, "Tree",
                     "Static draft tree. Node 0 is the root; nodes 1.. are the choices, stably ordered by depth.")
        .def(nb::init<std::vector<Choice>>(), "choices"_a,
             "choices: paths of ranks. NativeError for duplicates, empty or negative entries, orphans, over 255 nodes.")
        .def_static("from_parents", &Tree::from_parents, "parents"_a,
                    "The tree whose node i hangs below parents[i] (-1: the root, first), siblings ranked in order.\n\n"
                    "NativeError when a child comes before its parent or before a node of lesser depth.")
        .def("clipped", &Tree::clipped, "head_count"_a, "ranks"_a, "max_nodes"_a = Tree::max_size,
             "Without the choices deeper than head_count or with a rank >= ranks; at most max_nodes nodes with root.")
        .def_prop_ro("choices", &Tree::choices)
        .def_prop_ro("size", &Tree::size, "Nodes including the root.")
        .def_prop_ro("depth", &Tree::depth, "Deepest drafted depth (0: root only).")
        .def_prop_ro("max_rank", &Tree::max_rank, "Largest rank used, -1 when there is none.")
        .def_prop_ro("leaf_count", &Tree::leaf_count)
        .def_prop_ro("parents", &Tree::parents, "Parent index of each node; -1 for the root.")
        .def_prop_ro(
            "sequences",
            [](const Tree& tree) {
                std::vector<std::vector<int>> out;
                for (int node = 0; node < tree.size(); ++node) out.push_back(tree.sequences(node));
                return out;
            },
            "Leaf indices below each node: the sequence ids the node is decoded with.");
}

}  // namespace medusa
