#include "base/platform.h"
#include "drafting/watchdog.h"
#include "llama/thread_control.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

class Prices {
  public:
    void report(int threads, int nodes, double ms, int tokens, bool disturbed) {
        economy_.report({true, nodes, 1, tokens, 0, ms, ms, threads, disturbed});
    }
    double verify_ms(int nodes) const { return cost_->verify_ms({nodes, 1}); }
    double rate() const { return cost_->rate(); }

  private:
    std::shared_ptr<DraftCost> cost_ = std::make_shared<DraftCost>(std::vector<std::pair<int, double>>{}, true);
    Economy economy_{cost_};
};

}  // namespace

void bind_threads(nb::module_& m) {
    m.def("allowed_cores_cpu_ms", &allowed_cores_cpu_ms,
          "How long the cores that this process may run on have worked for programs that do not give way to it.");
    nb::class_<ThreadControl>(m, "ThreadControl", "With how many threads the next pass runs, told what passes take.")
        .def(nb::init<int, int>(), "most"_a, "start"_a)
        .def_prop_ro("threads", &ThreadControl::threads)
        .def_prop_ro(
            "is_slower", [](const ThreadControl& c) { return c.reason() == ThreadControl::Reason::slower; },
            "Whether there are not more since more were slower; otherwise other programs are the reason.")
        .def("patience_ms", &ThreadControl::patience_ms, "rows"_a)
        .def(
            "report",
            [](ThreadControl& c, int threads, int rows, double ms, double waiting, bool given_up) {
                c.report({threads, rows, ms, waiting, given_up});
            },
            "threads"_a, "rows"_a, "ms"_a, "waiting"_a = 0.0, "given_up"_a = false)
        .def("set_room", &ThreadControl::set_room, "cores"_a)
        .def_ro_static("too_many_waiting", &ThreadControl::too_many_waiting);
    nb::class_<Prices>(m, "Prices", "What drafting learns of costs, told of steps as a session tells it.")
        .def(nb::init<>())
        .def("report", &Prices::report, "threads"_a, "nodes"_a, "ms"_a, "tokens"_a = 1, "disturbed"_a = false)
        .def("verify_ms", &Prices::verify_ms, "nodes"_a)
        .def_prop_ro("rate", &Prices::rate, "Tokens per millisecond.");
}

}  // namespace medusa::testing
