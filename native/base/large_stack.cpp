#include "base/large_stack.h"

#include <exception>

#include "base/common.h"

#ifdef _WIN32
#include <thread>
#else
#include <limits.h>
#include <pthread.h>

#include <algorithm>
#endif

namespace medusa {
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
