// The RPC backend RENDEZ: torch's remote calls, references and distributed autograd over rendez.
//
// torch does all above messages; an agent sends a request, and gives a future of its response. Between two workers
// there are two keys each way, one for heads of messages and one for what follows them, and both are in order. As
// many values follow as the head says: an empty one for each that could not be sent. Responses find their request by
// its number. If a worker dies, all that waits for it fails at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <thread>
#include <unordered_map>

#include <c10/core/thread_pool.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include "library.hpp"
#include "rpc_wire.hpp"

namespace rendez_torch {

using rpc::JitFuture;
using rpc::worker_id_t;
using rpc::WorkerInfo;

// Where tensors of a worker's devices go: to which of another worker's, by its name.
using DeviceMaps = std::unordered_map<std::string, rpc::DeviceMap>;

// A bound of seconds, and no longer one than clocks count.
std::chrono::milliseconds milliseconds(float seconds);

class RendezAgent : public rpc::RpcAgent {
public:
    // Without a `world_size` the group is dynamic: workers join and leave, one at a time, and tell the others.
    // `devices` are all that the group's maps name of this worker's.
    RendezAgent(const c10::intrusive_ptr<c10d::Store> &store, std::string name, worker_id_t id, int world_size,
                float timeout, int threads, DeviceMaps device_maps, std::vector<c10::Device> devices);
    ~RendezAgent() override;

    c10::intrusive_ptr<JitFuture> send(const WorkerInfo &to, c10::intrusive_ptr<rpc::Message> message,
                                       const float timeout, const rpc::DeviceMap &device_map) override;
    void join(bool shutdown, float timeout) override;
    void sync() override {}
    void startImpl() override;
    void shutdownImpl() override;
    const WorkerInfo &getWorkerInfo(const std::string &name) const override;
    const WorkerInfo &getWorkerInfo(worker_id_t id) const override;
    std::vector<WorkerInfo> getWorkerInfos() const override;
    std::unordered_map<std::string, std::string> getMetrics() override;
    void addGilWaitTime(const std::chrono::microseconds wait) override;
    rpc::DeviceMap getDeviceMap(const WorkerInfo &to) const override;
    const std::vector<c10::Device> &getDevices() const override { return devices_; }

    bool is_static() const { return world_size_ > 0; }
    // Tells all others of the dynamic group that this worker has joined it, or is about to leave; returns when they
    // know, and then it is listed, or is not any more. Throws if one cannot reach it, or does not hear it in so many
    // seconds.
    void announce(bool is_join, float timeout);

protected:
    // Before a request is sent, when its time runs already.
    virtual void before_post(rpc::MessageType) {}

private:
    using When = rpc::steady_clock_time_point;
    // A message that arrives: its head is here, and its parts come. Of those wanted so many were asked for, and so many
    // have not come.
    struct Arriving {
        Bytes head;
        std::vector<Bytes> parts;
        size_t wanted = 0, asked = 0, missing = 0;
    };
    // Another worker: its keys, and whether it can be reached.
    struct Peer {
        explicit Peer(WorkerInfo named) : info(std::move(named)) {}
        const WorkerInfo info;
        std::unique_ptr<rendez::Key> to_head, to_part, from_head, from_part;
        std::timed_mutex order;
        // How many parts of the last message could not be sent; under `order`.
        size_t owed = 0;
        // The message whose parts are being asked for, until all have been: then the next head is asked for. How many
        // parts were asked for, of all messages, and have not come. Both under the gate's lock.
        std::shared_ptr<Arriving> coming;
        size_t asked = 0;
        // Where what is sent back to it goes: its own map, from the other end.
        rpc::DeviceMap back;
        // What it lent of its memory, and is kept here.
        const std::shared_ptr<Kept> kept = std::make_shared<Kept>();
        // How others reach it.
        std::vector<uint8_t> card;
        // Why it cannot be reached any more, and whether the group was told; under `calls_lock_`.
        std::string lost;
        bool is_told_of = false;
    };
    struct Call {
        c10::intrusive_ptr<JitFuture> future;
        const Peer *to;
        std::chrono::milliseconds timeout;
        // When its time is up, if it has a bound.
        When until;
    };
    using CallPtr = std::shared_ptr<Call>;
    using Calls = std::unordered_map<int64_t, CallPtr>;
    // Stands between callbacks of the library and an agent that may have ended.
    struct Gate {
        std::mutex lock;
        // Held together by those that respond, whom the agent waits for when it ends.
        std::shared_mutex responding;
        RendezAgent *agent;
    };

    void meet();
    void meet(Peer &peer);
    Peer &add(std::unique_ptr<Peer> peer);
    std::vector<WorkerInfo> listed();
    void list(bool is_there);
    bool is_lost(const WorkerInfo &worker);
    void tell_of_losses();
    void watch();
    void joined(const WorkerInfo &worker);
    void left(const WorkerInfo &worker);
    void listen(Peer &peer);
    void arrived(Peer &peer, const std::shared_ptr<Arriving> &message);
    void take_in(Peer &peer, Arriving &message);
    void settle_calls();
    void run_apart(const std::function<void()> &job);
    void lost(Peer &peer, const std::exception &error);
    void begin(const rendez::Key &key, Peer &peer, std::function<void(Bytes)> told);
    void on_head(Peer &peer, Bytes head);
    void on_part(Peer &peer, const std::shared_ptr<Arriving> &message, size_t place, Bytes part);
    void ask(Peer &peer);
    void ask_later(Peer &peer);
    void post(Peer &peer, Outgoing message, When until);
    void put(const rendez::Key &key, Room value, When until);
    void settle(Peer &peer, When until);
    void request(Peer &peer, Incoming incoming);
    void respond(Peer &peer, JitFuture &future, int64_t id);
    void respond_with(Peer &peer, const std::string &why, int64_t id);
    void response(const CallPtr &call, Incoming incoming);
    void unreadable(Peer &peer, const Bytes &head, const std::string &why);
    CallPtr take(int64_t id, const Peer *peer = nullptr);
    Calls::iterator drop(Calls::iterator call);
    void fail(const CallPtr &call, const std::string &why);
    void fail_all(const Peer *peer, const std::string &why);
    void expire();
    void count(int &counter, int change);
    Peer &peer(worker_id_t id);

    c10d::PrefixStore names_, cards_, shutdown_;
    const int world_size_;
    const DeviceMaps device_maps_;
    const std::vector<c10::Device> devices_;
    std::shared_ptr<Node> node_;
    // The most that all others together keep of what this worker has for them.
    const uint64_t kept_bytes_;
    uint64_t step_ = 0;
    c10::ThreadPool pool_;
    std::shared_ptr<Gate> gate_;
    // Guards who is in the group; a peer itself stays until the agent ends, as calls and receives know it.
    mutable std::mutex members_lock_;
    std::unordered_map<worker_id_t, std::unique_ptr<Peer>> peers_;
    std::unordered_map<std::string, worker_id_t> by_name_;
    std::vector<std::unique_ptr<Peer>> gone_;
    // Of a dynamic group: the next change of it, and who hears of them. A receive names its source, so that no worker
    // hears a newcomer by a message: they find each other by the store.
    int64_t next_change_ = 0;
    std::thread watch_thread_;

    std::atomic<int64_t> next_id_{1};
    std::mutex calls_lock_;
    Calls calls_;
    bool is_over_ = false;
    // Of each call that has a bound, as long as it is under way.
    std::set<std::pair<When, int64_t>> timers_;
    std::condition_variable timer_;
    std::thread timer_thread_;

    std::mutex count_lock_;
    std::condition_variable counted_;
    // The last: that have arrived, and are being taken in.
    int client_calls_ = 0, server_calls_ = 0, server_async_ = 0, responses_ = 0;
    std::atomic<uint64_t> gil_wait_{0}, gil_waits_{0};
};

} // namespace rendez_torch
