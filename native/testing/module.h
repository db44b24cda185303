// One function per topic; module.cpp calls them all.
#pragma once

#include "bindings/bindings.h"
#include "bindings/ndarray.h"

namespace medusa::testing {

using StateVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_session(nb::module_& m);
void bind_grammar(nb::module_& m);
void bind_dynamic_tree(nb::module_& m);
void bind_rejection(nb::module_& m);
void bind_device(nb::module_& m);
void bind_threads(nb::module_& m);
void bind_in_graph(nb::module_& m);
void bind_heads(nb::module_& m);
void bind_streams(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_prefix_layer(nb::module_& m);
void bind_texts(nb::module_& m);

}  // namespace medusa::testing
