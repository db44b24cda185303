// One function per topic; module.cpp calls them all.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <string_view>

#include "base/platform.h"
#include "llama/pass_threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace medusa {

void bind_files(nb::module_& m);
void bind_grammar(nb::module_& m);
void bind_tree(nb::module_& m);
void bind_model(nb::module_& m);
void bind_heads(nb::module_& m);
void bind_session(nb::module_& m);
void bind_collect(nb::module_& m);
void bind_quantize(nb::module_& m);
void bind_timing(nb::module_& m);
void bind_placement(nb::module_& m);
void bind_states(nb::module_& m);
void bind_embedder(nb::module_& m);
void bind_streams(nb::module_& m);

// What the stub calls dict[str, Any], Any, and, with nb::none() as default, a function or None.
using Facts = nb::typed<nb::dict, nb::str, nb::any>;
using Value = nb::typed<nb::object, nb::any>;
template <typename Call>
using Callback = nb::typed<nb::object, nb::typed<nb::callable, Call>>;

// Calls back with the GIL from code that no exception may cross. A Python exception or a pending signal ends the run,
// and is raised afterwards.
class Callbacks {
  public:
    // What `call` returns, true for None; false once there is something to raise.
    template <typename Call>
    bool operator()(Call&& call) {
        if (failure_) return false;
        const nb::gil_scoped_acquire gil;
        try {
            nb::object go_on = call();
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            return go_on.is_none() || nb::cast<bool>(go_on);
        } catch (...) {
            failure_ = std::current_exception();
            return false;
        }
    }
    void rethrow() const {
        if (failure_) std::rethrow_exception(failure_);
    }

  private:
    std::exception_ptr failure_;
};

// Metadata values, tokens and texts of models may hold bytes that are not UTF-8; they stay readable.
inline nb::str text(std::string_view bytes) {
    return nb::steal<nb::str>(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// 0 or less: all physical cores, fewer where other programs need them.
inline Threads resolve_threads(int threads) {
    return {threads > 0 ? threads : physical_cores(), threads <= 0};
}

}  // namespace medusa
