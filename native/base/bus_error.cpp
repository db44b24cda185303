#include "base/bus_error.h"

#ifndef _WIN32
#include <signal.h>
#include <unistd.h>
#endif

namespace medusa {

#ifdef _WIN32
void explain_bus_errors() {}
#else
namespace {

constexpr char line[] =
    "medusa: a model file was cut off while it was in use, or its disk failed: see that the file is whole, then start "
    "again\n";

// Only what is safe in a signal handler. The access is repeated afterwards, and ends the process.
void on_bus_error(int) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, line, sizeof(line) - 1);
    signal(SIGBUS, SIG_DFL);
}

}  // namespace

void explain_bus_errors() {
    struct sigaction now{};
    if (sigaction(SIGBUS, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) || now.sa_handler != SIG_DFL) return;
    signal(SIGBUS, on_bus_error);
}
#endif

}  // namespace medusa
