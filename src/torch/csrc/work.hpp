// One operation of a process group: what torch waits for, asks the outcome of, and hangs callbacks on.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <unistd.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "callbacks.hpp"

namespace rendez_torch {

class RendezWork : public c10d::Work {
public:
    // `timeout` bounds a wait that names no bound; 0 where the operation ends in time by itself. The callbacks of its
    // future run in `callbacks`.
    RendezWork(int rank, c10d::OpType type, const char *title, const std::vector<at::Tensor> &inputs,
               std::vector<at::Tensor> outputs, std::chrono::milliseconds timeout,
               std::shared_ptr<CallbackQueue> callbacks);

    bool wait(std::chrono::milliseconds timeout) override;
    void synchronize() override { wait(kNoTimeout); }
    std::vector<at::Tensor> result() override { return outputs_; }
    const std::vector<at::Tensor> &outputs() const { return outputs_; }
    // A callback that asks for the future of a collective of its group waits here until that is over. The future is
    // completed in turn, and so behind this callback, which could not wait for it.
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    int sourceRank() const override { return source_; }
    // Newer versions of PyTorch, 2.15 among them, ask for it, and it overrides theirs; 2.12 has none.
    // NOLINTNEXTLINE(modernize-use-override)
    std::chrono::milliseconds getTimeout() const { return timeout_; }

    // Ends it, once; later calls do nothing and give false. `source` is the rank that a receive got its value from.
    bool complete(std::exception_ptr error = nullptr, int source = -1);
    // Called when a wait runs out of time, to end what goes on; it should complete the work.
    std::function<void(std::chrono::milliseconds)> on_timeout;
    // Called by who waits until then, and may do the work meanwhile; for a future, with a time that is over.
    std::function<void(std::chrono::steady_clock::time_point)> on_wait;

private:
    using Future = c10::ivalue::Future;
    bool is_receive() const { return opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE; }
    // Completes the future, once, and runs its callbacks.
    void mark();

    std::vector<at::Tensor> outputs_;
    const std::chrono::milliseconds timeout_;
    std::mutex state_;
    bool is_done_ = false, is_marked_ = false;
    // Asked for in a callback of the group, and of an operation that ends when a peer sends: it is completed out of
    // turn.
    bool is_apart_ = false;
    std::exception_ptr error_;
    c10::intrusive_ptr<Future> future_;
    const std::shared_ptr<CallbackQueue> callbacks_;
    int source_ = -1;
};

// Runs a group's collectives one after the other, in the order they were called: a call that is waited for at once
// runs in its own thread if nothing is before it, which saves two changes of threads.
class Queue {
public:
    ~Queue();
    void run(bool is_waited_for, std::function<void()> job);
    // Waits until nothing runs and nothing waits; false if that takes longer than `patience`.
    bool drain(std::chrono::milliseconds patience);

private:
    // The thread's too, which goes on after the queue if a job of its own ends that.
    struct State {
        std::mutex lock;
        std::condition_variable changed;
        std::deque<std::function<void()>> jobs;
        bool is_busy = false, is_over = false;
    };
    static void serve(State &state);
    bool begin();

    const pid_t process_ = getpid();
    const std::shared_ptr<State> state_ = std::make_shared<State>();
    std::thread thread_;
};

} // namespace rendez_torch
