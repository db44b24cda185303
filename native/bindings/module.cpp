#include "base/common.h"
#include "bindings/bindings.h"
#include "llama/backend.h"

namespace {

PyObject *native_error = nullptr, *out_of_memory = nullptr;  // as long as the module, which is never unloaded

// Errors of Python have a text with slots for options; braces in what the engine says are none (support/errors.py).
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
    nb::dict members;
    members["values"] = nb::dict();
    native_error = PyErr_NewException("medusa_cli._native.NativeError", PyExc_RuntimeError, members.ptr());
    out_of_memory = PyErr_NewException("medusa_cli._native.OutOfMemoryError", native_error, nullptr);
    m.attr("NativeError") = nb::handle(native_error);
    m.attr("OutOfMemoryError") = nb::handle(out_of_memory);
    nb::register_exception_translator(&translate);
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
}
