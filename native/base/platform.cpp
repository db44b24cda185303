#include "base/platform.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
// after windows.h
#include <psapi.h>
#else
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "base/common.h"

namespace medusa {

int physical_cores() {
    const int logical = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#if defined(__linux__)
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return logical;
    std::set<std::string> cores;  // hyper-threads of one core share this list
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
        std::string siblings;
        cores.insert(std::getline(file, siblings) ? siblings : std::to_string(cpu));
    }
    return std::max(1, static_cast<int>(cores.size()));
#elif defined(__APPLE__)
    int count = 0;
    size_t size = sizeof(count);
    // Performance cores only: a straggling efficiency core would hold up every operator.
    if (sysctlbyname("hw.perflevel0.physicalcpu", &count, &size, nullptr, 0) == 0 && count > 0) return count;
    if (sysctlbyname("hw.physicalcpu", &count, &size, nullptr, 0) == 0 && count > 0) return count;
    return logical;
#else
    return std::max(1, logical / 2);
#endif
}

double process_cpu_ms() {
#if defined(_WIN32)
    FILETIME created, ended, kernel, user;
    if (!GetProcessTimes(GetCurrentProcess(), &created, &ended, &kernel, &user)) return 0;
    const auto ms = [](const FILETIME& t) {
        constexpr double per_ms = 10000;  // in units of 100 ns
        return static_cast<double>((uint64_t{t.dwHighDateTime} << 32) | t.dwLowDateTime) / per_ms;
    };
    return ms(kernel) + ms(user);
#else
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
#endif
}

double allowed_cores_cpu_ms() {
#if defined(__linux__)
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    std::ifstream file("/proc/stat");
    if (!file || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return -1;
    const bool among_nice = getpriority(PRIO_PROCESS, 0) > 0;
    unsigned long long ticks = 0;
    bool found = false;
    // One line for all of them together, then one for each.
    for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
        if (line.size() < 4 || line[3] == ' ') continue;
        int cpu = 0;
        unsigned long long user = 0, nice = 0, system = 0;
        if (std::sscanf(line.c_str(), "cpu%d %llu %llu %llu", &cpu, &user, &nice, &system) != 4) continue;
        if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) continue;
        ticks += user + system + (among_nice ? nice : 0);
        found = true;
    }
    return found ? static_cast<double>(ticks) * 1e3 / static_cast<double>(sysconf(_SC_CLK_TCK)) : -1;
#else
    return -1;
#endif
}

uint64_t peak_rss_bytes() {
#if defined(_WIN32)
    PROCESS_MEMORY_COUNTERS counters;
    if (!K32GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof(counters))) return 0;
    return counters.PeakWorkingSetSize;
#else
    rusage usage{};
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#if defined(__APPLE__)
    return static_cast<uint64_t>(usage.ru_maxrss);
#else
    return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
#endif
#endif
}

#if defined(__linux__)
namespace {

// Whether one read-only mapping of a file covers [begin, end), according to the kernel's list of mappings.
bool is_read_only_file(uintptr_t begin, uintptr_t end) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        unsigned long from = 0, to = 0, offset = 0, inode = 0;
        unsigned major = 0, minor = 0;
        char mode[5] = {};
        if (std::sscanf(line.c_str(), "%lx-%lx %4s %lx %x:%x %lu", &from, &to, mode, &offset, &major, &minor, &inode) !=
            7) {
            continue;
        }
        if (from <= begin && begin < to) return end <= to && inode != 0 && mode[0] == 'r' && mode[1] == '-';
    }
    return false;
}

}  // namespace

bool release_file_pages(const void* data, size_t size) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const auto end = (reinterpret_cast<uintptr_t>(data) + size) / page * page;
    return begin < end && is_read_only_file(begin, end) &&
           madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) == 0;
}
#else
bool release_file_pages(const void*, size_t) {
    return false;
}
#endif

namespace {

constexpr double least_span_ms = 200;  // the kernel counts in steps of 10 ms

struct Measurement {
    std::mutex mutex;
    Stopwatch since;
    double all = allowed_cores_cpu_ms(), own = process_cpu_ms();
    std::optional<double> cores;

    std::optional<double> newest() {
        const std::lock_guard lock(mutex);
        if (all < 0 || since.elapsed_ms() < least_span_ms) return cores;
        const double span = since.lap(), all_then = all, own_then = own;
        all = allowed_cores_cpu_ms(), own = process_cpu_ms();
        if (all >= 0) cores = std::max((all - all_then - (own - own_then)) / span, 0.0);
        return cores;
    }
};

Measurement& measurement() {
    static Measurement one;
    return one;
}

}  // namespace

void begin_measuring_other_programs() {
    measurement();
}

std::optional<double> cores_of_other_programs() {
    return measurement().newest();
}

#ifdef _WIN32
void explain_bus_errors() {}
#else
namespace {

constexpr char line[] =
    "medusa: a mapped file, such as the model, was cut off while it was in use, or its disk failed: see that it is "
    "whole, then start again\n";

// Does only what is safe in a signal handler. The access is then repeated and ends the process; a signal sent by
// someone is sent again.
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

namespace {

struct Job {
    const std::function<void()>& work;
    std::exception_ptr failure = nullptr;

    void run() {
        try {
            work();
        } catch (...) {
            failure = std::current_exception();
        }
    }
};

#ifdef _WIN32
void run_apart(size_t, Job& job) {
    std::thread([&] { job.run(); }).join();
}
#else
void run_apart(size_t bytes, Job& job) {
    constexpr size_t page = 1 << 16;  // a multiple of every system's
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    const size_t size = (std::max<size_t>(bytes, PTHREAD_STACK_MIN) + page - 1) / page * page;
    pthread_t thread;
    const auto start = [](void* data) -> void* {
        static_cast<Job*>(data)->run();
        return nullptr;
    };
    const bool failed =
        pthread_attr_setstacksize(&attributes, size) != 0 || pthread_create(&thread, &attributes, start, &job) != 0;
    pthread_attr_destroy(&attributes);
    if (failed) {
        throw OutOfMemory("no memory for a stack of " + std::to_string(bytes >> 20) +
                          " MiB, which this text needs: shorten it");
    }
    pthread_join(thread, nullptr);
}
#endif

}  // namespace

void on_large_stack(size_t bytes, const std::function<void()>& work) {
    Job job{work};
    run_apart(bytes, job);
    if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace medusa
