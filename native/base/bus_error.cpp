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
    "medusa: a mapped file, such as the model, was cut off while it was in use, or its disk failed: see that it is "
    "whole, then start again\n";

// Only what is safe in a signal handler. The access is repeated afterwards, and ends the process; a signal that
// somebody sent is sent again.
void on_bus_error(int number, siginfo_t* info, void*) {
    signal(SIGBUS, SIG_DFL);
    if (info->si_code == BUS_ADRERR) {
        [[maybe_unused]] const auto written = write(STDERR_FILENO, line, sizeof(line) - 1);
    } else if (info->si_code <= 0) {
        raise(number);
    }
}

}  // namespace

void explain_bus_errors() {
    struct sigaction now{};
    if (sigaction(SIGBUS, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) || now.sa_handler != SIG_DFL) return;
    now.sa_flags = SA_SIGINFO;
    now.sa_sigaction = on_bus_error;
    sigaction(SIGBUS, &now, nullptr);
}
#endif

}  // namespace medusa
