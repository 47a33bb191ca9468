// Point to point: receives by rank and tag, and from any rank.
//
// Matching is done here. An edge has one receive of the engine under way while a receive waits for it; its value goes
// to who waited first for its tag, be it for that rank alone or for any. If none waits for it, it is kept for the next.
//
// Who waits for a work asks the engine in its own thread, which brings the value without another being woken. So a
// receive is begun by a wait for it; or soon after, for a callback, as the engine may want it to move a long value.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "group.hpp"
#include "work.hpp"

namespace rendez_torch {

class Inbox : public std::enable_shared_from_this<Inbox> {
public:
    explicit Inbox(std::shared_ptr<Group> group) : group_(std::move(group)) {}
    // What still waits fails.
    ~Inbox();

    // Fills `into`, which is contiguous, from the first of these ranks that sends. `done` runs before the work ends.
    void receive(const std::vector<int> &sources, int tag, at::Tensor into, c10::intrusive_ptr<RendezWork> work,
                 std::function<void()> done);

private:
    struct Waiter {
        std::vector<int> sources;
        int tag;
        std::string edge;
        at::Tensor into;
        c10::intrusive_ptr<RendezWork> work;
        std::function<void()> done;
        // It is told by a callback: some thread sleeps until then, or none waits.
        bool is_told = false;
        bool is_over = false;
    };
    // Of a rank and an edge.
    struct Line {
        int source = 0;
        std::string edge;
        std::unique_ptr<rendez::Key> key;
        std::deque<std::shared_ptr<Waiter>> waiters;
        // With their tags.
        std::deque<std::pair<int, Bytes>> kept;
        bool is_under_way = false;
        // It is in `soon_`.
        bool is_soon = false;
        std::exception_ptr lost;
    };

    // None goes before the inbox does.
    Line &line(int source, const std::string &edge);
    void wait(const std::shared_ptr<Waiter> &waiter, Deadline until);
    // Begins what the waiters of a line need: now if one is told by a callback, else soon.
    void go_on(Line &line);
    void begin(Line &line);
    bool begin_later(Line &line);
    void begin_soon();
    void arrived(Line &line, rendez_status *status, rendez_tensor *value);
    void fail(Line &line, const std::exception_ptr &error);
    void expire(const std::shared_ptr<Waiter> &waiter, std::chrono::milliseconds bound);
    void remove(const std::shared_ptr<Waiter> &waiter);
    static void fill(const std::shared_ptr<Waiter> &waiter, int source, Bytes bytes);
    static void take_in(Waiter &waiter, int source, const Bytes &bytes);

    std::shared_ptr<Group> group_;
    std::mutex lock_;
    std::map<std::pair<int, std::string>, Line> lines_;
    // Whose receives begin soon, unless waits begin them before.
    std::vector<Line *> soon_;
};

} // namespace rendez_torch
