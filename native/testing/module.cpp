#include "testing/module.h"

#include "llama/backend.h"

// What tests and scripts need from the engine and users do not. Built with MEDUSA_TESTING; no wheel for users has it.
NB_MODULE(_native_testing, m) {
    m.doc() = "Works on objects of the engine and raises its errors.";
    nb::module_::import_("medusa_cli.native");  // these functions take its types and raise its errors
    medusa::backend_is_initialised();
    medusa::testing::bind_session(m);
    medusa::testing::bind_grammar(m);
    medusa::testing::bind_dynamic_tree(m);
    medusa::testing::bind_rejection(m);
    medusa::testing::bind_device(m);
    medusa::testing::bind_threads(m);
    medusa::testing::bind_in_graph(m);
    medusa::testing::bind_heads(m);
    medusa::testing::bind_streams(m);
    medusa::testing::bind_kernels(m);
    medusa::testing::bind_prefix_layer(m);
    medusa::testing::bind_texts(m);
}
