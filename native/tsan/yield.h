// Included before ggml's C sources: who waits at a barrier lets others run. There are more threads than cores, and a
// barrier would otherwise take as long as the system lets one thread run.
#pragma once

#include <sched.h>

// The function that waits a moment: its calls become sched_yield(), its definition another function's.
#define wait_ sched_yield
#define ggml_thread_cpu_relax(argument) wait_##argument()
