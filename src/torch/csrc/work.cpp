// Operations of a process group, and the order they run in: see work.hpp.
#include "work.hpp"

#include <pthread.h>

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

#include "callbacks.hpp"
#include "devices.hpp"

namespace rendez_torch {
namespace {

// How long an operation whose time is up may take to end: a value may be copied to its tensor just then.
constexpr std::chrono::seconds kEnding{10};

} // namespace

RendezWork::RendezWork(int rank, c10d::OpType type, const char *title, const std::vector<at::Tensor> &inputs,
                       std::vector<at::Tensor> outputs, std::chrono::milliseconds timeout)
    : Work(rank, type, title, inputs), outputs_(std::move(outputs)), timeout_(timeout) {}

bool RendezWork::wait(std::chrono::milliseconds timeout) {
    auto bound = timeout > kNoTimeout ? timeout : timeout_;
    std::unique_lock<std::mutex> guard(mutex_);
    auto is_over = [this] { return completed_; };
    if (bound <= kNoTimeout) {
        cv_.wait(guard, is_over);
    } else if (!cv_.wait_for(guard, bound, is_over)) {
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
    bool is_done = false;
    {
        std::lock_guard<std::mutex> guard(state_);
        if (future_ != nullptr) {
            return future_;
        }
        future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()), devices_of(outputs_));
        is_done = is_done_;
    }
    if (is_done) {
        mark(*future_, error_, outputs_);
    }
    return future_;
}

bool RendezWork::complete(std::exception_ptr error, int source) {
    c10::intrusive_ptr<Future> future;
    {
        std::lock_guard<std::mutex> guard(state_);
        if (is_done_) {
            return false;
        }
        is_done_ = true;
        error_ = error;
        source_ = source;
        future = future_;
    }
    finish(error);
    if (future != nullptr) {
        run_callbacks([future, error, outputs = outputs_] { mark(*future, error, outputs); });
    }
    return true;
}

void RendezWork::mark(Future &future, const std::exception_ptr &error, const std::vector<at::Tensor> &outputs) {
    if (error) {
        future.setError(error);
    } else {
        future.markCompleted(c10::IValue(outputs));
    }
}

Queue::~Queue() {
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
        if (!is_waited_for || state_->is_busy || !state_->jobs.empty()) {
            if (!thread_.joinable()) {
                thread_ = std::thread([state = state_] { serve(*state); });
                pthread_setname_np(thread_.native_handle(), "rendez-group");
            }
            // Another thread does it as this one would: in its mode of inference, say.
            state_->jobs.push_back([job = std::move(job), state = at::ThreadLocalState()] {
                at::ThreadLocalStateGuard guard(state);
                job();
            });
            guard.unlock();
            state_->changed.notify_all();
            return;
        }
        state_->is_busy = true;
    }
    job();
    {
        std::lock_guard<std::mutex> guard(state_->lock);
        state_->is_busy = false;
    }
    state_->changed.notify_all();
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
