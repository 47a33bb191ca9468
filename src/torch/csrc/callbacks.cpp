// Threads for the callbacks of futures: see callbacks.hpp.
#include "callbacks.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <pthread.h>

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

namespace rendez_torch {
namespace {

// How long a thread stays that has nothing to do.
constexpr std::chrono::seconds kIdle{10};

class Threads {
public:
    void run(std::function<void()> job) {
        std::lock_guard<std::mutex> guard(lock_);
        jobs_.push_back(std::move(job));
        if (jobs_.size() > idle_) {
            std::thread thread([this] { serve(); });
            pthread_setname_np(thread.native_handle(), "rendez-futures");
            thread.detach();
            ++idle_;
        }
        changed_.notify_one();
    }

private:
    void serve() {
        std::unique_lock<std::mutex> guard(lock_);
        while (changed_.wait_for(guard, kIdle, [this] { return !jobs_.empty(); })) {
            auto job = std::move(jobs_.front());
            jobs_.pop_front();
            --idle_;
            guard.unlock();
            job();
            job = nullptr;
            guard.lock();
            ++idle_;
        }
        --idle_;
    }

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;
    // Those that wait for a job, or are about to.
    size_t idle_ = 0;
};

} // namespace

void run_callbacks(std::function<void()> callbacks) {
    // Never destroyed: a thread may outlive the static objects of this library.
    static auto &threads = *new Threads;
    threads.run([callbacks = std::move(callbacks), state = at::ThreadLocalState()] {
        at::ThreadLocalStateGuard guard(state);
        try {
            callbacks();
        } catch (const std::exception &error) {
            TORCH_WARN("rendez: a callback of a future failed: ", error.what());
        }
    });
}

} // namespace rendez_torch
