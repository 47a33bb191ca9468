// The members of a process group as tasks of rendez: keys to each and from each, and one step for all they say.
//
// A group is one step: an abort of it ends what waits in it at every member, and its end drops what is left. Values of
// one key come in order, so the keys are constant: a collective is told apart from the next by its place in the order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "library.hpp"
#include "stamp.hpp"

namespace rendez_torch {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// The longest bound of a wait. The clock counts nanoseconds, and some bounds that it is given are longer than it counts.
constexpr std::chrono::hours kLongest{24 * 365};

// What a value is for: values of one lane from one rank to another come in the order they were sent.
enum class Lane { contribution, result };

// The edge of a message with a tag. Programs may number their messages by tags, and the engine keeps what it knows of
// a key as long as the group lives: so tags share so many edges. The tag stands behind the bytes of the message.
constexpr int kMessageEdges = 64;
std::string message_edge(int tag);

// The end of a wait, and what to say of it.
struct Until {
    Deadline deadline;
    std::chrono::milliseconds timeout;
    const char *what;

    static Until after(std::chrono::milliseconds timeout, const char *what);
    // What is left, in nanoseconds.
    uint64_t patience() const;
};

// Whether an engine only has no room for a receive just now, as that reason says: its mailbox is full, say. It is asked
// again by another thread, since it may be this one that empties it. A value that found no memory is an outcome: it is
// gone.
bool is_full(const std::string &reason);

// Does what begins a receive, again while there is no room for it: in a thread that is none of the library's.
void when_there_is_room(const std::function<void()> &begin);

// Begins a receive; `told` is called once with its outcome, on a thread of the library. It owns both arguments.
void begin_recv(rendez_engine *engine, uint64_t step, const rendez::Key &key,
                std::function<void(rendez_status *, rendez_tensor *)> told);

class Group : public std::enable_shared_from_this<Group> {
public:
    // Meets the others over the store; returns when all are known.
    static std::shared_ptr<Group> meet(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size);

    int rank() const { return rank_; }
    int size() const { return size_; }
    rendez_engine *engine() const { return node_->engine(); }
    uint64_t step() const { return step_; }
    // Memory for a value; waits for it while the engine has none, as others have not read theirs.
    Room room(size_t size, const Until &until) const;
    // The same for a value of a collective. What comes first of a piece has its stamp, behind its bytes.
    Room room(size_t size, const Stamp &stamp, bool is_first, const Until &until) const;
    // The number of the next collective. They run one after the other.
    uint64_t next_collective() { return ++collectives_; }

    // Sends a value, which is gone then; waits for room if there is none.
    void send(int to, Lane lane, rendez_tensor *value, const Until &until);
    // Waits for the next value of a rank, of so many bytes, made as in `room`. If it is another the ranks called
    // different collectives: then the group ends at every member.
    Bytes recv(int from, Lane lane, size_t size, const Stamp &stamp, bool is_first, const Until &until);

    // The same for point to point, along an edge of that name.
    void send_message(int to, const std::string &edge, const Room &room, const Until &until);
    Bytes recv_message(int from, const std::string &edge, const Until &until);
    rendez::Key message_key(int from, const std::string &edge) const;
    // A value of `from` was taken in.
    void count_received(int from);

    // What an error means for a user: an exception that names the rank.
    std::exception_ptr failure(const rendez::Error &error, int peer, const Until &until, bool is_send = false) const;
    // Ends the group at every member: all that waits fails with this message.
    void abort(const std::string &why, bool is_loss = false);
    // Fails if a collective has failed before, of a loss or otherwise: its values may still come, and be taken for
    // another's. And in a child of `fork`.
    void check_usable() const;
    void mark_failed(const std::string &why, bool is_loss = false);

    // Whether this is a child of `fork`: it has the group and the engine of its parent, and none of their threads.
    bool is_forked() const { return getpid() != process_; }
    // Waits until the members have what was sent to them, and ends the step here.
    void leave(std::chrono::milliseconds patience);

private:
    struct Peer {
        Task task;
        std::unique_ptr<rendez::Key> to[2], from[2], ask, asked, answer, answered;
        // Those of messages, by their edges; under `edges_lock_`. None goes before the group does.
        std::map<std::string, std::unique_ptr<const rendez::Key>> edges;
        std::atomic<uint64_t> sent{0}, received{0};
        // How many values the peer wants to hear the receipt of; 0 for none.
        std::atomic<uint64_t> wanted{0};
        // It has what was sent to it, or needs it no more, as it has left or is lost; under `settled_lock_`.
        bool is_settled = false;
        // It was told the same of this rank.
        std::atomic<bool> is_told{false};
        // It is lost, and why; the text is written before.
        std::atomic<bool> is_lost{false};
        std::string why_lost;
    };

    Group(int rank, int size) : rank_(rank), size_(size), peers_(static_cast<size_t>(size)) {}
    // Agrees on the step; gives how each member is reached.
    std::vector<std::string> exchange_cards(c10d::Store &store);
    void make_keys(Peer &peer, const Task &task) const;
    // `again` is the value too, for one that may have to be sent more than once.
    void send(int to, const rendez::Key &key, rendez_tensor *value, const Until &until, const Room *again = nullptr);
    void answer_when_asked(int from);
    void settle_when_answered(int from);
    void tell(Peer &peer);
    void check_there(int rank, const Until &until);
    std::string loss(int rank, const Until &until, const std::string &why) const;
    void end(uint32_t code, const std::string &why);
    void answer(Peer &peer);
    Peer &peer(int rank) { return *peers_.at(static_cast<size_t>(rank)); }
    const Peer &peer(int rank) const { return *peers_.at(static_cast<size_t>(rank)); }

    const int rank_, size_;
    const pid_t process_ = getpid();
    std::shared_ptr<Node> node_;
    uint64_t step_ = 0, collectives_ = 0;
    std::vector<std::unique_ptr<Peer>> peers_;
    std::mutex edges_lock_, settled_lock_;
    std::condition_variable settled_;
    mutable std::mutex failed_lock_;
    std::atomic<bool> is_failed_{false};
    std::string why_failed_;
    bool is_failed_of_loss_ = false;
    std::atomic<bool> has_left_{false};
};

} // namespace rendez_torch
