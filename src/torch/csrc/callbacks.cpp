// Threads for the callbacks of futures: see callbacks.hpp.
#include "callbacks.hpp"

#include <ctime>
#include <system_error>
#include <thread>
#include <utility>

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

namespace rendez_torch {
namespace {

// How long a thread stays that has nothing to do.
constexpr std::chrono::seconds kIdle{10};
// A callback stands still if in so long it uses less of a processor than that.
constexpr std::chrono::seconds kStill{1};
constexpr std::chrono::milliseconds kUsed{5};

class Threads {
public:
    // False if the system has no thread for it.
    bool run(std::function<void()> job) {
        std::lock_guard<std::mutex> guard(lock_);
        if (jobs_.size() == idle_) {
            try {
                std::thread thread([this] { serve(); });
                pthread_setname_np(thread.native_handle(), "rendez-futures");
                thread.detach();
            } catch (const std::system_error &) {
                return false;
            }
            ++idle_;
        }
        jobs_.push_back(std::move(job));
        changed_.notify_one();
        return true;
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

Threads &threads() {
    // Never destroyed: a thread may outlive the static objects of this library.
    static auto &threads = *new Threads;
    return threads;
}

// With the modes of the thread that calls this; what it throws is told.
std::function<void()> guarded(std::function<void()> callbacks) {
    return [callbacks = std::move(callbacks), state = at::ThreadLocalState()] {
        at::ThreadLocalStateGuard guard(state);
        try {
            callbacks();
        } catch (const std::exception &error) {
            TORCH_WARN("rendez: a callback of a future failed: ", error.what());
        }
    };
}

// How much of a processor a thread has used.
std::chrono::nanoseconds used_by(pthread_t thread) {
    clockid_t clock = {};
    timespec used = {};
    if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &used) != 0) {
        return {};
    }
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

// The queue whose callback this thread runs.
thread_local const CallbackQueue *here = nullptr;

} // namespace

void run_callbacks(std::function<void()> callbacks) {
    auto job = guarded(std::move(callbacks));
    if (!threads().run(job)) {
        job();
    }
}

void CallbackQueue::run(std::function<void()> callbacks) {
    auto job = guarded(std::move(callbacks));
    std::unique_lock<std::mutex> guard(lock_);
    waiting_.push_back(std::move(job));
    if (is_served_) {
        return call_stand_by(guard);
    }
    is_served_ = true;
    if (!threads().run([queue = shared_from_this()] {
            std::unique_lock<std::mutex> guard(queue->lock_);
            queue->serve(guard);
        })) {
        serve(guard);
    }
}

bool CallbackQueue::drain(std::chrono::milliseconds patience) {
    std::unique_lock<std::mutex> guard(lock_);
    return is_here() || changed_.wait_for(guard, patience, [this] { return waiting_.empty() && running_ == 0; });
}

bool CallbackQueue::is_here() const { return here == this; }

// The thread has the turn: until nothing waits, or until it has stood still.
void CallbackQueue::serve(std::unique_lock<std::mutex> &guard) {
    server_ = pthread_self();
    uint64_t own = begun_;
    while (own == begun_ && !waiting_.empty()) {
        auto job = std::move(waiting_.front());
        waiting_.pop_front();
        own = ++begun_;
        ++running_;
        if (!waiting_.empty()) {
            call_stand_by(guard);
        }
        guard.unlock();
        auto outer = std::exchange(here, this);
        job();
        job = nullptr;
        here = outer;
        guard.lock();
        --running_;
    }
    if (own == begun_) {
        server_.reset();
        is_served_ = false;
    }
    changed_.notify_all();
}

void CallbackQueue::call_stand_by(std::unique_lock<std::mutex> &) {
    if (!is_stood_by_) {
        is_stood_by_ = threads().run([queue = shared_from_this()] {
            std::unique_lock<std::mutex> guard(queue->lock_);
            queue->stand_by(guard);
        });
    }
}

// Takes the turn if the thread that has it stands still while others wait.
void CallbackQueue::stand_by(std::unique_lock<std::mutex> &guard) {
    while (is_served_ && !waiting_.empty()) {
        auto watched = begun_;
        auto used = server_ ? used_by(*server_) : std::chrono::nanoseconds(0);
        bool is_over = changed_.wait_for(guard, kStill, [this] { return !is_served_; });
        if (!is_over && server_ && begun_ == watched && used_by(*server_) - used < kUsed) {
            TORCH_WARN_ONCE("rendez: a callback of a future has waited for ", kStill.count(),
                            " s: those behind it begin beside it, in an order that may differ between ranks");
            is_stood_by_ = false;
            return serve(guard);
        }
    }
    is_stood_by_ = false;
}

} // namespace rendez_torch
