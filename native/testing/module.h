// One function per topic; module.cpp calls them all.
#pragma once

#include "bindings/bindings.h"

namespace medusa::testing {

void bind_session(nb::module_& m);
void bind_dynamic_tree(nb::module_& m);
void bind_rejection(nb::module_& m);
void bind_device(nb::module_& m);
void bind_threads(nb::module_& m);
void bind_in_graph(nb::module_& m);
void bind_streams(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_prefix_layer(nb::module_& m);

}  // namespace medusa::testing
