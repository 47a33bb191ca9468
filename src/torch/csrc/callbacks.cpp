// Threads for the callbacks of futures: see callbacks.hpp.
#include "callbacks.hpp"

#include <cstdlib>
#include <ctime>
#include <system_error>
#include <thread>
#include <utility>

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "library.hpp"

namespace rendez_torch {
namespace {

// How long a thread stays that has nothing to do.
constexpr std::chrono::seconds kIdle{10};
// So many threads are begun as soon as there is work for them; more only if for so long none of them takes any.
constexpr size_t kEager = 64;
constexpr std::chrono::milliseconds kStuck{10};
// A callback that runs in others, in so much stack of them, is deep. A chain of them grows by some kilobytes a link.
constexpr size_t kDeep = 128 << 10;
// A callback stands still if in so long it uses less of a processor than that; and if this thread was late to see so,
// the machine stood still.
constexpr std::chrono::seconds kStill{2};
constexpr std::chrono::milliseconds kUsed{5}, kLate{500};

class Threads {
public:
    // False if the system has no thread for it.
    bool run(std::function<void()> job) {
        std::lock_guard<std::mutex> guard(lock_);
        if (jobs_.size() >= idle_) {
            if (threads_ < kEager) {
                if (!begin([this] { serve(); })) {
                    return false;
                }
                ++idle_, ++threads_;
            } else if (!is_watched_ && !(is_watched_ = begin([this] { watch(); }))) {
                return false;
            }
        }
        jobs_.push_back(std::move(job));
        changed_.notify_one();
        return true;
    }

private:
    static bool begin(std::function<void()> body) {
        try {
            std::thread thread(std::move(body));
            pthread_setname_np(thread.native_handle(), "rendez-futures");
            thread.detach();
            return true;
        } catch (const std::system_error &) {
            return false;
        }
    }

    // Those that run may all wait for what these do.
    void watch() {
        std::unique_lock<std::mutex> guard(lock_);
        while (!jobs_.empty()) {
            uint64_t taken = taken_;
            watched_.wait_for(guard, kStuck, [this] { return jobs_.empty(); });
            if (!jobs_.empty() && taken_ == taken && begin([this] { serve(); })) {
                ++idle_, ++threads_;
            }
        }
        is_watched_ = false;
    }

    void serve() {
        std::unique_lock<std::mutex> guard(lock_);
        while (changed_.wait_for(guard, kIdle, [this] { return !jobs_.empty(); })) {
            auto job = std::move(jobs_.front());
            jobs_.pop_front();
            --idle_, ++taken_;
            if (jobs_.empty()) {
                watched_.notify_one();
            }
            guard.unlock();
            job();
            job = nullptr;
            guard.lock();
            ++idle_;
        }
        --idle_, --threads_;
    }

    std::mutex lock_;
    std::condition_variable changed_, watched_;
    std::deque<std::function<void()>> jobs_;
    // Those that wait for a job, or are about to.
    size_t idle_ = 0;
    size_t threads_ = 0;
    uint64_t taken_ = 0;
    bool is_watched_ = false;
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
            TORCH_WARN("rendez: a callback of a future failed: ", words_of(error));
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

// The queue whose callback this thread runs, and where its stack was when that began.
thread_local CallbackQueue *here = nullptr;
thread_local const char *here_from = nullptr;

const char *stack_now() { return static_cast<const char *>(__builtin_frame_address(0)); }

} // namespace

bool run_callbacks(std::function<void()> callbacks) { return threads().run(guarded(std::move(callbacks))); }

CallbackQueue::Waits::Waits() : queue_(here) { add(1); }

void CallbackQueue::Waits::add(int change) {
    if (queue_ != nullptr) {
        std::lock_guard<std::mutex> guard(queue_->lock_);
        queue_->waits_ += change;
        ++queue_->waited_;
    }
}

void CallbackQueue::expect() {
    std::lock_guard<std::mutex> guard(lock_);
    ++unfinished_;
}

void CallbackQueue::run_apart(std::function<void()> callbacks) {
    auto job = guarded([queue = shared_from_this(), callbacks = std::move(callbacks)]() mutable {
        auto ended = c10::make_scope_exit([&queue] {
            std::lock_guard<std::mutex> guard(queue->lock_);
            queue->end();
        });
        callbacks();
        callbacks = nullptr;
    });
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

bool CallbackQueue::is_idle() {
    std::lock_guard<std::mutex> guard(lock_);
    return unfinished_ == 0;
}

bool CallbackQueue::drain(std::chrono::milliseconds patience) {
    std::unique_lock<std::mutex> guard(lock_);
    return is_here() || changed_.wait_for(guard, patience, [this] { return unfinished_ == 0; });
}

bool CallbackQueue::is_here() const { return here == this; }

bool CallbackQueue::is_anywhere() { return here != nullptr; }

bool CallbackQueue::is_deep() const {
    return is_here() && static_cast<size_t>(std::abs(here_from - stack_now())) > kDeep;
}

// The thread has the turn: until nothing waits, or until it has stood still.
void CallbackQueue::serve(std::unique_lock<std::mutex> &guard) {
    server_ = pthread_self();
    uint64_t own = begun_;
    while (own == begun_ && !waiting_.empty()) {
        auto job = std::move(waiting_.front());
        waiting_.pop_front();
        own = ++begun_;
        if (!waiting_.empty()) {
            call_stand_by(guard);
        }
        guard.unlock();
        auto outer = std::exchange(here, this);
        auto outer_from = std::exchange(here_from, stack_now());
        job();
        job = nullptr;
        here = outer;
        here_from = outer_from;
        guard.lock();
        end();
    }
    if (own == begun_) {
        server_.reset();
        is_served_ = false;
        changed_.notify_all();
    }
}

void CallbackQueue::end() {
    if (--unfinished_ == 0) {
        changed_.notify_all();
    }
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
        auto watched = begun_, waited = waited_;
        auto used = server_ ? used_by(*server_) : std::chrono::nanoseconds(0);
        auto since = std::chrono::steady_clock::now();
        bool is_over = changed_.wait_for(guard, kStill, [this] { return !is_served_; });
        bool is_late = std::chrono::steady_clock::now() - since > kStill + kLate;
        bool has_moved = begun_ != watched || waits_ != 0 || waited_ != waited;
        if (!is_over && !is_late && !has_moved && server_ && used_by(*server_) - used < kUsed) {
            is_stood_by_ = false;
            threads().run(guarded([] {
                TORCH_WARN_ONCE("rendez: a callback of a future has waited for ", kStill.count(),
                                " s: those behind it begin beside it, in an order that may differ between ranks");
            }));
            return serve(guard);
        }
    }
    is_stood_by_ = false;
}

} // namespace rendez_torch
