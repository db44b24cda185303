#include "base/common.h"
#include "bindings/bindings.h"
#include "kernels/ggml_internals.h"
#include "llama/backend.h"

namespace {

PyObject *native_error = nullptr, *out_of_memory = nullptr;  // as long as the module lives, which is never unloaded

constexpr const char* native_error_doc =
    "Something the person can put right, in one line: str() is that line, as on the command line.\n\n"
    "args[0]: its text, with a slot {name} for each option that it names, by the option's field; values: {}, which\n"
    "says that braces are slots (support.errors.worded).";
constexpr const char* out_of_memory_doc =
    "What was asked for does not fit into the memory of a device or of the machine: less of it may.";

// Python's Errors have a text with slots for options; braces in the engine's text are not slots (support/errors.py).
void raise(const medusa::Error& error, PyObject* type) {
    std::string text;
    for (const char c : std::string_view(error.what())) {
        if (c == '{' || c == '}') text += c;
        text += c;
    }
    if (!error.remedy().empty()) text += ": " + error.remedy();
    PyErr_SetObject(type, nb::cast(text).ptr());
}

void translate(const std::exception_ptr& error, void*) {
    try {
        std::rethrow_exception(error);
    } catch (const medusa::OutOfMemory& failure) {
        raise(failure, out_of_memory);
    } catch (const medusa::Error& failure) {
        raise(failure, native_error);
    }
}

}  // namespace

NB_MODULE(_native, m) {
    medusa::initialise_backend();
    m.doc() =
        "The native engine (native/, bound in native/bindings/).\n\n"
        "Import it through medusa_cli.native, never directly: llama_cpp must be loaded first. Every failure a\n"
        "person can cause raises NativeError with a one-line message: what, where, what to do.";
    nb::dict members;
    members["values"] = nb::dict();
    native_error = PyErr_NewExceptionWithDoc("medusa_cli._native.NativeError", native_error_doc, PyExc_RuntimeError,
                                             members.ptr());
    out_of_memory =
        PyErr_NewExceptionWithDoc("medusa_cli._native.OutOfMemoryError", out_of_memory_doc, native_error, nullptr);
    m.attr("NativeError") = nb::handle(native_error);
    m.attr("OutOfMemoryError") = nb::handle(out_of_memory);
    nb::register_exception_translator(&translate);
    m.attr("LLAMA_CPP_PYTHON") = MEDUSA_LLAMA_CPP_PYTHON;  // the version it was built against
    m.attr("GGML_VERSION") = medusa::ggml_release;
    medusa::bind_files(m);
    medusa::bind_tree(m);
    medusa::bind_grammar(m);
    medusa::bind_model(m);
    medusa::bind_heads(m);
    medusa::bind_session(m);
    medusa::bind_collect(m);
    medusa::bind_quantize(m);
    medusa::bind_timing(m);
    medusa::bind_placement(m);
    medusa::bind_states(m);
    medusa::bind_embedder(m);
    medusa::bind_streams(m);
}
