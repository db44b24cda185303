#include "decoding/tree.h"

#include "bindings/bindings.h"

namespace medusa {

void bind_tree(nb::module_& m) {
    nb::class_<Tree>(m, "Tree")
        .def(nb::init<std::vector<Choice>>(), "choices"_a)
        .def_static("from_parents", &Tree::from_parents, "parents"_a)
        .def("clipped", &Tree::clipped, "head_count"_a, "ranks"_a, "max_nodes"_a = Tree::max_size)
        .def_prop_ro("choices", &Tree::choices)
        .def_prop_ro("size", &Tree::size)
        .def_prop_ro("depth", &Tree::depth)
        .def_prop_ro("max_rank", &Tree::max_rank)
        .def_prop_ro("leaf_count", &Tree::leaf_count)
        .def_prop_ro("parents", &Tree::parents)
        .def_prop_ro("sequences", [](const Tree& tree) {
            std::vector<std::vector<int>> out;
            for (int node = 0; node < tree.size(); ++node) out.push_back(tree.sequences(node));
            return out;
        });
}

}  // namespace medusa
