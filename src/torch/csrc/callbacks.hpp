// Threads for the callbacks of futures, which may wait for other operations.
//
// So none runs in a thread that operations need: that of a group, or the one in which the engine tells of values.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include <pthread.h>

namespace rendez_torch {

// Runs it soon in a thread of its own kind, behind no other that waits, and with this thread's modes. Without a thread to
// be had from the system it runs in this one.
void run_callbacks(std::function<void()> callbacks);

// The callbacks of one group, one after the other in the order in which operations ended, so that what they begin is
// begun in one order by all ranks. One that stands still may wait for one behind it: after a second that begins too.
class CallbackQueue : public std::enable_shared_from_this<CallbackQueue> {
public:
    void run(std::function<void()> callbacks);
    // Waits until none runs and none waits; false if that takes longer than `patience`. True in one of them.
    bool drain(std::chrono::milliseconds patience);
    // Whether this thread runs one of them.
    bool is_here() const;

private:
    void serve(std::unique_lock<std::mutex> &guard);
    void stand_by(std::unique_lock<std::mutex> &guard);
    void call_stand_by(std::unique_lock<std::mutex> &guard);

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> waiting_;
    // Whether it is a thread's turn, and which one runs callback number `begun_`.
    bool is_served_ = false;
    std::optional<pthread_t> server_;
    uint64_t begun_ = 0;
    // With those that stood still, and whose turn is over.
    size_t running_ = 0;
    // Whether another thread watches the one whose turn it is.
    bool is_stood_by_ = false;
};

} // namespace rendez_torch
