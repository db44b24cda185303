// Threads that start together, so that the work is timed and not their creation. They wait awake: a system that has to
// wake them may put them all on one core.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace medusa::lab {

class Team {
  public:
    using Work = std::function<void(int thread)>;

    explicit Team(int threads) {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(i); });
    }
    ~Team() {
        start(nullptr);
        for (std::thread& worker : workers_) worker.join();
    }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Seconds until all threads have finished `work`.
    double run(Work work) {
        const auto begin = std::chrono::steady_clock::now();
        start(std::move(work));
        work_(0);
        while (busy_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

  private:
    void start(Work work) {
        work_ = std::move(work);
        busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
        turn_.fetch_add(1, std::memory_order_release);
    }

    void serve(int thread) {
        for (unsigned seen = 0;; ++seen) {
            while (turn_.load(std::memory_order_acquire) == seen) std::this_thread::yield();
            if (!work_) return;
            work_(thread);
            busy_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::atomic<unsigned> turn_{0};
    std::atomic<int> busy_{0};
    Work work_;
    std::vector<std::thread> workers_;
};

}  // namespace medusa::lab
