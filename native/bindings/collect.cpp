#include "training/collect.h"

#include "bindings/bindings.h"
#include "bindings/ndarray.h"

namespace medusa {
namespace {

// Calls back with the GIL; a Python exception or a pending signal ends the run and is raised afterwards.
class Callbacks {
  public:
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

nb::object states_array(const Continuation& done) {
    if (done.states.empty()) return nb::none();
    const size_t rows = done.tokens.size();
    return new_matrix<uint16_t>(done.states.data(), rows, done.states.size() / rows, half_type);
}

void run_collect(std::shared_ptr<LlamaModel> model, const std::vector<std::vector<Token>>& prompts,
                 const std::vector<float>& temperatures, int max_tokens, int n_parallel, uint64_t seed, int n_threads,
                 bool hidden, const nb::object& on_sequence, const nb::object& on_progress,
                 const nb::object& on_partial) {
    const CollectParams params{max_tokens, n_parallel, seed, resolve_threads(n_threads), hidden};
    Callbacks call;
    const auto done = [&](const Continuation& c) {
        return call([&] { return nb::object(on_sequence(c.index, c.tokens, states_array(c))); });
    };
    const auto progress = [&](uint64_t tokens) {
        return call([&] { return on_progress.is_none() ? nb::none() : nb::object(on_progress(tokens)); });
    };
    OnPartial partial;
    if (!on_partial.is_none()) {
        partial = [&](const Continuation& c) {
            return call([&] { return nb::object(on_partial(c.index, c.tokens)); });
        };
    }
    {
        const nb::gil_scoped_release released;
        collect(std::move(model), prompts, temperatures, params, done, progress, partial);
    }
    call.rethrow();
}

}  // namespace

void bind_collect(nb::module_& m) {
    m.def("collect", &run_collect, "model"_a, "prompts"_a, "temperatures"_a, nb::kw_only(), "max_tokens"_a,
          "n_parallel"_a = 32, "seed"_a = 0, "n_threads"_a = 0, "hidden"_a = true, "on_sequence"_a,
          "on_progress"_a = nb::none(), "on_partial"_a = nb::none());
}

}  // namespace medusa
