// Operations of a process group, and the order they run in: see work.hpp.
#include "work.hpp"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include <pthread.h>

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

#include "devices.hpp"
#include "gil.hpp"
#include "group.hpp"

namespace rendez_torch {
namespace {

// How long an operation whose time is up may take to end: a value may be copied to its tensor just then.
constexpr std::chrono::seconds kEnding{10};

} // namespace

RendezWork::RendezWork(int rank, c10d::OpType type, const char *title, const std::vector<at::Tensor> &inputs,
                       std::vector<at::Tensor> outputs, std::chrono::milliseconds timeout,
                       std::shared_ptr<CallbackQueue> callbacks)
    : Work(rank, type, title, inputs), outputs_(std::move(outputs)), timeout_(timeout),
      callbacks_(std::move(callbacks)) {}

bool RendezWork::wait(std::chrono::milliseconds timeout) {
    auto bound = std::min<std::chrono::milliseconds>(timeout > kNoTimeout ? timeout : timeout_, kLongest);
    std::optional<CallbackQueue::Waits> waits;
    if (!is_receive()) {
        waits.emplace();
    }
    auto until = Clock::now() + (bound > kNoTimeout ? bound : kLongest);
    if (on_wait) {
        // A callback that uses a processor while it waits does not seem to stand still.
        on_wait(CallbackQueue::is_anywhere() ? Clock::now() : until);
    }
    std::unique_lock<std::mutex> guard(mutex_);
    auto is_over = [this] { return completed_; };
    if (bound <= kNoTimeout) {
        cv_.wait(guard, is_over);
    } else if (!cv_.wait_until(guard, until, is_over)) {
        guard.unlock();
        if (!on_timeout) {
            C10_THROW_ERROR(DistBackendError, c10::str("rendez: Timed out waiting ", bound.count(),
                                                       "ms for an operation, which goes on"));
        }
        on_timeout(bound);
        guard.lock();
        if (!cv_.wait_for(guard, kEnding, is_over)) {
            guard.unlock();
            complete(std::make_exception_ptr(c10::DistBackendError(
                {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                c10::str("rendez: Timed out waiting ", bound.count(), "ms for an operation that does not end"))));
            guard.lock();
            cv_.wait(guard, is_over);
        }
    }
    if (exception_) {
        std::rethrow_exception(exception_);
    }
    return true;
}

c10::intrusive_ptr<c10::ivalue::Future> RendezWork::getFuture() {
    // Deep in a chain of callbacks each would run in the one before: there it takes its turn.
    const bool is_callback = callbacks_->is_here() && !callbacks_->is_deep();
    bool is_done = false, is_new = false;
    {
        std::lock_guard<std::mutex> guard(state_);
        is_done = is_done_;
        is_new = future_ == nullptr;
        if (is_new) {
            future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()), devices_of(outputs_));
        }
        is_apart_ = is_apart_ || (is_callback && is_receive());
    }
    if (!is_done && on_wait) {
        on_wait(Clock::now());
    }
    if (is_callback && !is_receive() && !is_done) {
        WithoutGil released;
        CallbackQueue::Waits waits;
        std::unique_lock<std::mutex> guard(mutex_);
        cv_.wait(guard, [this] { return completed_; });
        is_done = true;
    }
    if (is_done && (is_callback || (is_new && callbacks_->is_idle()))) {
        WithoutGil released;
        mark();
    } else if (is_done && is_new) {
        // Callbacks of what ended before have not run.
        callbacks_->expect();
        callbacks_->run([work = c10::intrusive_ptr<RendezWork>::unsafe_reclaim_from_nonowning(this)] { work->mark(); });
    }
    return future_;
}

bool RendezWork::complete(std::exception_ptr error, int source) {
    bool is_asked = false, is_apart = false;
    {
        std::lock_guard<std::mutex> guard(state_);
        if (is_done_) {
            return false;
        }
        is_done_ = true;
        error_ = error;
        source_ = source;
        is_asked = future_ != nullptr;
        is_apart = is_apart_;
    }
    if (is_asked) {
        callbacks_->expect();
    }
    finish(error);
    if (is_asked) {
        auto job = [work = c10::intrusive_ptr<RendezWork>::unsafe_reclaim_from_nonowning(this)] { work->mark(); };
        is_apart ? callbacks_->run_apart(job) : callbacks_->run(job);
    }
    return true;
}

void RendezWork::mark() {
    {
        std::lock_guard<std::mutex> guard(state_);
        if (std::exchange(is_marked_, true)) {
            return;
        }
    }
    if (error_) {
        future_->setError(error_);
    } else {
        future_->markCompleted(c10::IValue(outputs_));
    }
}

Queue::~Queue() {
    if (process_ != getpid()) {
        // A child of `fork` has no such thread, and must neither join it nor leave it.
        static_cast<void>(new std::thread(std::move(thread_)));
        return;
    }
    {
        std::lock_guard<std::mutex> guard(state_->lock);
        state_->is_over = true;
    }
    state_->changed.notify_all();
    if (thread_.joinable()) {
        // A callback of a future may drop the group: then its thread ends by itself.
        if (thread_.get_id() == std::this_thread::get_id()) {
            thread_.detach();
        } else {
            thread_.join();
        }
    }
}

void Queue::run(bool is_waited_for, std::function<void()> job) {
    {
        std::unique_lock<std::mutex> guard(state_->lock);
        bool is_later = (!is_waited_for || state_->is_busy || !state_->jobs.empty()) && begin();
        if (is_later) {
            // Another thread does it as this one would: in its mode of inference, say.
            state_->jobs.push_back([job = std::move(job), state = at::ThreadLocalState()] {
                at::ThreadLocalStateGuard guard(state);
                job();
            });
            guard.unlock();
            state_->changed.notify_all();
            return;
        }
        state_->changed.wait(guard, [this] { return !state_->is_busy; });
        state_->is_busy = true;
    }
    job();
    {
        std::lock_guard<std::mutex> guard(state_->lock);
        state_->is_busy = false;
    }
    state_->changed.notify_all();
}

// Whether it has its thread. Without one nothing is queued, and each thread runs what it calls.
bool Queue::begin() {
    if (!thread_.joinable()) {
        try {
            thread_ = std::thread([state = state_] { serve(*state); });
        } catch (const std::system_error &error) {
            TORCH_WARN("rendez: a group has no thread, and runs its operations in those that call them: ",
                       error.what());
            return false;
        }
        pthread_setname_np(thread_.native_handle(), "rendez-group");
    }
    return true;
}

bool Queue::drain(std::chrono::milliseconds patience) {
    std::unique_lock<std::mutex> guard(state_->lock);
    if (thread_.get_id() == std::this_thread::get_id()) {
        return true;
    }
    return state_->changed.wait_for(guard, patience, [this] { return state_->jobs.empty() && !state_->is_busy; });
}

void Queue::serve(State &state) {
    std::unique_lock<std::mutex> guard(state.lock);
    for (;;) {
        state.changed.wait(guard, [&state] { return state.is_over || (!state.jobs.empty() && !state.is_busy); });
        if (state.jobs.empty()) {
            return;
        }
        auto job = std::move(state.jobs.front());
        state.jobs.pop_front();
        state.is_busy = true;
        guard.unlock();
        job();
        job = nullptr;
        guard.lock();
        state.is_busy = false;
        state.changed.notify_all();
    }
}

} // namespace rendez_torch
