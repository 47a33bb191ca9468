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

// Runs it soon in a thread of its own kind, behind no other that waits, and with this thread's modes. False if the
// system has no thread for it: then it does not run.
bool run_callbacks(std::function<void()> callbacks);

// The callbacks of one group, one after the other in the order in which operations ended, so that what they begin is
// begun in one order by all ranks. One that stands still may wait for one behind it: after two seconds that begins
// too, unless it says that it waits for an operation, which ends by itself. One that polls does not stand still.
class CallbackQueue : public std::enable_shared_from_this<CallbackQueue> {
public:
    // Of an operation that is about to end: its callbacks will come. They are waited for from here on.
    void expect();
    // Those of an operation that was expected, in their turn; or now, in a thread of their own.
    void run(std::function<void()> callbacks);
    void run_apart(std::function<void()> callbacks);
    // Waits until none runs, waits or is expected; false if that takes longer than `patience`. True in one of them.
    bool drain(std::chrono::milliseconds patience);
    // Whether none runs and none waits.
    bool is_idle();
    // Whether this thread runs one of them; and whether that runs in so many others that it had better begin no more.
    bool is_here() const;
    // Whether it runs one of any queue.
    static bool is_anywhere();
    bool is_deep() const;

    // Says that the callback which this thread runs, if it runs one, waits for an operation: of its group or another.
    class Waits {
    public:
        Waits();
        Waits(const Waits &) = delete;
        Waits &operator=(const Waits &) = delete;
        ~Waits() { add(-1); }

    private:
        void add(int change);
        CallbackQueue *const queue_;
    };

private:
    void serve(std::unique_lock<std::mutex> &guard);
    void stand_by(std::unique_lock<std::mutex> &guard);
    void call_stand_by(std::unique_lock<std::mutex> &guard);
    void end();

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> waiting_;
    // Whether it is a thread's turn, and which one runs callback number `begun_`.
    bool is_served_ = false;
    std::optional<pthread_t> server_;
    uint64_t begun_ = 0;
    // How many of its waits for operations are under way, and how many there were.
    int waits_ = 0;
    uint64_t waited_ = 0;
    // That are expected, wait or run, also those that stood still and those apart.
    size_t unfinished_ = 0;
    // Whether another thread watches the one whose turn it is.
    bool is_stood_by_ = false;
};

} // namespace rendez_torch
