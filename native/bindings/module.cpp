#include "base/common.h"
#include "bindings/bindings.h"
#include "llama/backend.h"

NB_MODULE(_native, m) {
    medusa::initialise_backend();
    const auto error = nb::exception<medusa::Error>(m, "NativeError", PyExc_RuntimeError);
    nb::exception<medusa::OutOfMemory>(m, "OutOfMemoryError", error.ptr());
    m.attr("LLAMA_CPP_PYTHON") = MEDUSA_LLAMA_CPP_PYTHON;
    medusa::bind_files(m);
    medusa::bind_tree(m);
    medusa::bind_model(m);
    medusa::bind_heads(m);
    medusa::bind_session(m);
    medusa::bind_collect(m);
    medusa::bind_quantize(m);
    medusa::bind_teacher_forcing(m);
    medusa::bind_timing(m);
    medusa::bind_placement(m);
    medusa::bind_scoring(m);
    medusa::bind_states(m);
    medusa::bind_streams(m);
    auto testing = m.def_submodule("testing", "A deterministic model without weights, for tests.");
    medusa::bind_testing(testing);
    medusa::bind_testing_dynamic_tree(testing);
    medusa::bind_testing_rejection(testing);
    medusa::bind_testing_device(testing);
    medusa::bind_testing_threads(testing);
    medusa::bind_testing_in_graph(testing);
    medusa::bind_testing_streams(testing);
    medusa::bind_kernels(testing);
    medusa::bind_prefix_layer(testing);
}
