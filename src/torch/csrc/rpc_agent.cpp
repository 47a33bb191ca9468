// The RPC backend RENDEZ: see rpc_agent.hpp.
#include "rpc_agent.hpp"

#include <algorithm>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/rpc/agent_utils.h>
#include <torch/csrc/distributed/rpc/request_callback_impl.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include "callbacks.hpp"
#include "devices.hpp"
#include "gil.hpp"
#include "group.hpp"

namespace rendez_torch {
namespace {

// How long a message waits for room before it fails, in all: senders that outrun a receiver are slowed down by this.
constexpr std::chrono::seconds kPatienceForRoom{10};

// How many parts of messages are asked of a worker at a time: the engine bounds the receives of a key, and what waits
// in its mailbox, to some thousands.
constexpr size_t kAsked = 256;

// The engine of this process, which looks for devices if they are wanted and it has not begun.
std::shared_ptr<Node> node_with(bool devices) {
    if (devices) {
        Node::want_devices();
    }
    return Node::get();
}

// What is said where a worker has no device for a tensor of ours.
std::string missing(const char *what, const WorkerInfo &to) {
    return c10::str("rendez sends tensors of GPUs only where it knows a device for them: move your tensors to CPU "
                    "before sending them over RPC, or call `set_device_map` on `RendezRpcBackendOptions` to explicitly "
                    "configure device mapping. ",
                    what, " device mapping is not available for destination ", to.name_);
}

} // namespace

std::chrono::milliseconds milliseconds(float seconds) {
    constexpr float kMost = std::chrono::seconds(kLongest).count();
    return std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, kMost) * 1000));
}

RendezAgent::RendezAgent(const c10::intrusive_ptr<c10d::Store> &store, std::string name, worker_id_t id, int world_size,
                         float timeout, int threads, DeviceMaps device_maps, std::vector<c10::Device> devices)
    : RpcAgent(WorkerInfo(std::move(name), id), std::make_unique<rpc::RequestCallbackImpl>(), milliseconds(timeout)),
      names_("names", store), cards_("cards", store), shutdown_("shutdown", store), world_size_(world_size),
      device_maps_(std::move(device_maps)), devices_(std::move(devices)), node_(node_with(!devices_.empty())),
      kept_bytes_(std::min(node_->arena_bytes(), node_->parked_bytes()) / 4), pool_(threads),
      gate_(std::make_shared<Gate>()) {
    std::string own = is_static() ? "static" : "dynamic";
    auto kind = names_.compareSet("kind", {}, std::vector<uint8_t>(own.begin(), own.end()));
    TORCH_CHECK(std::string(kind.begin(), kind.end()) == own,
                "RPC group mixes statically and dynamically initialized members which is not supported.");
    if (is_static()) {
        for (auto &[known, number] : rpc::collectNames(names_, id, workerInfo_.name_, world_size)) {
            add(std::make_unique<Peer>(WorkerInfo(known, number)));
        }
        return;
    }
    next_change_ = names_.add("changes", 0) + 1;
    for (const WorkerInfo &worker : listed()) {
        TORCH_CHECK(worker.name_ != workerInfo_.name_ && worker.id_ != id, "rendez: the group has a worker ",
                    worker.name_, " of rank ", worker.id_, " already, so ", workerInfo_.name_, " of rank ", id,
                    " cannot join");
        add(std::make_unique<Peer>(worker));
    }
    // Without those that are lost, whose names and numbers are free: their cards may be replaced.
    list(false);
    add(std::make_unique<Peer>(workerInfo_));
}

RendezAgent::~RendezAgent() {
    shutdown();
    WithoutGil released;
    settle_calls();
}

// Those who wait for calls have been told, and no response is being taken in.
void RendezAgent::settle_calls() {
    std::unique_lock<std::mutex> guard(count_lock_);
    auto is_over = [this] { return client_calls_ == 0 && responses_ == 0; };
    while (!counted_.wait_for(guard, std::chrono::seconds(1), is_over) && !python_ends()) {
    }
}

void RendezAgent::startImpl() {
    meet();
    gate_->agent = this;
    for (auto &[id, peer] : peers_) {
        when_there_is_room([&, peer = peer.get()] { listen(*peer); });
    }
    timer_thread_ = std::thread([this] { expire(); });
    if (!is_static()) {
        watch_thread_ = std::thread([this] {
            try {
                watch();
            } catch (const std::exception &error) {
                TORCH_WARN("rendez: ", workerInfo_.name_, " hears no more who joins and leaves: ", words_of(error));
            }
        });
    }
}

void RendezAgent::shutdownImpl() {
    WithoutGil released;
    {
        // A call that comes later fails at once.
        std::lock_guard<std::mutex> guard(calls_lock_);
        is_over_ = true;
        timer_.notify_all();
    }
    if (timer_thread_.joinable()) {
        timer_thread_.join();
    }
    if (watch_thread_.joinable()) {
        watch_thread_.join();
    }
    {
        std::scoped_lock guard(gate_->lock, gate_->responding);
        gate_->agent = nullptr;
    }
    fail_all(nullptr, "RPC agent was shut down");
    pool_.waitWorkComplete();
    settle_calls();
    if (step_ != 0) {
        rendez::api().status_free(rendez::api().step_finish(node_->engine(), step_));
    }
}

c10::intrusive_ptr<JitFuture> RendezAgent::send(const WorkerInfo &to, c10::intrusive_ptr<rpc::Message> message,
                                                const float timeout, const rpc::DeviceMap &device_map) {
    TORCH_CHECK(message->isRequest(), "RendezAgent::send(..) is only for sending requests.");
    if (!rpcAgentRunning_.load()) {
        throw std::runtime_error(c10::str("Node ", workerInfo_.id_, " tried to send() a message of type ",
                                          message->type(), " but RPC is no longer running on this node."));
    }
    Peer &peer = this->peer(to.id_);
    auto call = std::make_shared<Call>();
    call->future = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), getDevices());
    call->to = &peer;
    auto bound = timeout == rpc::kUnsetRpcTimeout ? getRpcTimeout() : milliseconds(timeout);
    call->timeout = std::min<std::chrono::milliseconds>(bound, kLongest);
    int64_t id = next_id_++;
    auto type = message->type();
    // Throws for what cannot travel, before anything is counted.
    const rpc::DeviceMap map = device_map.empty() ? getDeviceMap(to) : device_map;
    auto until = std::chrono::steady_clock::now() + kPatienceForRoom;
    if (call->timeout.count() != 0) {
        until = std::min(until, std::chrono::steady_clock::now() + call->timeout);
    }
    Outgoing out = pack(node_->engine(), *message, id, {map, missing("Request", to)}, until);
    count(client_calls_, 1);
    std::string lost;
    {
        std::lock_guard<std::mutex> guard(calls_lock_);
        lost = is_over_ ? "the RPC agent is shut down" : peer.lost;
        calls_[id] = call;
        if (call->timeout.count() != 0) {
            call->until = std::chrono::steady_clock::now() + call->timeout;
            timers_.emplace(call->until, id);
            timer_.notify_one();
        }
    }
    try {
        TORCH_CHECK(lost.empty(), lost);
        before_post(type);
        post(peer, std::move(out), until);
    } catch (const c10::Error &error) {
        if (auto taken = take(id)) {
            fail(taken, error.what_without_backtrace());
        }
    } catch (const std::exception &error) {
        if (auto taken = take(id)) {
            fail(taken, c10::str("connection to ", to.name_, " failed: ", error.what()));
        }
    }
    return call->future;
}

void RendezAgent::post(Peer &peer, Outgoing message, When until) {
    std::unique_lock<std::timed_mutex> guard(peer.order, until);
    TORCH_CHECK(guard.owns_lock(), "rendez: what goes to ", peer.info.name_, " before it still waits for room there");
    settle(peer, until);
    put(*peer.to_head, std::move(message.values.front()), until);
    peer.owed = message.values.size() - 1;
    try {
        for (size_t i = 1; i < message.values.size(); ++i, --peer.owed) {
            put(*peer.to_part, std::move(message.values[i]), until);
        }
    } catch (const std::exception &) {
        try {
            settle(peer, When());
        } catch (const std::exception &) {
            // The next message does it.
        }
        throw;
    }
}

void RendezAgent::put(const rendez::Key &key, Room value, When until) {
    auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - std::chrono::steady_clock::now()).count();
    auto patience = static_cast<uint64_t>(std::max<int64_t>(left, 0));
    rendez::check(rendez::api().send(node_->engine(), step_, key.get(), value.finish(), patience));
}

// The parts of a message that could not be sent: for each an empty value, which no part is. Without them the parts of
// the next message would be taken for these.
void RendezAgent::settle(Peer &peer, When until) {
    for (; peer.owed != 0; --peer.owed) {
        put(*peer.to_part, Room(node_->engine(), 0), until);
    }
}

// If a receive fails the peer is lost, also where only that receive was refused: what it would have had, the next one
// gets. The engine tries again by itself where there is no room for a value.
void RendezAgent::begin(const rendez::Key &key, Peer &peer, std::function<void(Bytes)> told) {
    begin_recv(node_->engine(), step_, key,
               [gate = gate_, &peer, told = std::move(told)](rendez_status *status, rendez_tensor *value) {
                   std::lock_guard<std::mutex> guard(gate->lock);
                   if (gate->agent == nullptr) {
                       rendez::api().status_free(status);
                       rendez::api().tensor_free(value);
                       return;
                   }
                   try {
                       rendez::check(status);
                       told(Bytes(value));
                   } catch (const std::exception &error) {
                       gate->agent->lost(peer, error);
                   }
               });
}

void RendezAgent::listen(Peer &peer) {
    begin(*peer.from_head, peer, [this, &peer](Bytes head) { on_head(peer, std::move(head)); });
}

void RendezAgent::on_head(Peer &peer, Bytes head) {
    auto message = std::make_shared<Arriving>();
    message->wanted = message->missing = values_behind(head);
    message->parts.resize(message->wanted);
    message->head = std::move(head);
    peer.coming = message;
    ask(peer);
    if (message->wanted == 0) {
        arrived(peer, message);
    }
}

// Receives of a key are served in the order they began, so the parts of the next message come behind these; but they
// may be told in another order, so each knows its place.
void RendezAgent::ask(Peer &peer) {
    auto message = peer.coming;
    try {
        for (size_t &i = message->asked; i < message->wanted; ++i, ++peer.asked) {
            if (peer.asked == kAsked) {
                return;
            }
            begin(*peer.from_part, peer,
                  [this, &peer, message, i](Bytes part) { on_part(peer, message, i, std::move(part)); });
        }
        listen(peer);
        peer.coming = nullptr;
    } catch (const rendez::Error &error) {
        if (!is_full(error.reason())) {
            throw;
        }
        ask_later(peer);
    }
}

void RendezAgent::ask_later(Peer &peer) {
    run_apart([gate = gate_, &peer] {
        std::this_thread::sleep_for(kBetweenTries);
        std::lock_guard<std::mutex> guard(gate->lock);
        auto *agent = gate->agent;
        if (agent == nullptr || peer.coming == nullptr) {
            return;
        }
        try {
            agent->ask(peer);
        } catch (const std::exception &error) {
            agent->lost(peer, error);
        }
    });
}

void RendezAgent::on_part(Peer &peer, const std::shared_ptr<Arriving> &message, size_t place, Bytes part) {
    --peer.asked;
    message->parts[place] = std::move(part);
    if (peer.coming != nullptr) {
        ask(peer);
    }
    if (--message->missing == 0) {
        arrived(peer, message);
    }
}

// A response runs behind no request: those may wait for it, all that the pool has threads for.
void RendezAgent::arrived(Peer &peer, const std::shared_ptr<Arriving> &message) {
    if (named_by(message->head).second) {
        return pool_.run([this, &peer, message] { take_in(peer, *message); });
    }
    count(responses_, 1);
    run_apart([this, &peer, message] {
        auto counted = c10::make_scope_exit([this] { count(responses_, -1); });
        take_in(peer, *message);
    });
}

// Behind nothing that the pool runs, if the system has a thread for it.
void RendezAgent::run_apart(const std::function<void()> &job) {
    if (!run_callbacks(job)) {
        pool_.run(job);
    }
}

void RendezAgent::take_in(Peer &peer, Arriving &arriving) {
    Incoming incoming;
    try {
        incoming = unpack(node_->engine(), arriving.head, std::move(arriving.parts), peer.kept);
    } catch (const std::exception &error) {
        return unreadable(peer, arriving.head, words_of(error));
    }
    arriving.head = Bytes();
    if (incoming.message->isRequest()) {
        request(peer, std::move(incoming));
    } else if (auto call = take(incoming.message->id(), &peer)) {
        // Without a call its time was up.
        response(call, std::move(incoming));
    }
}

// Its tensors have no room here, say: the one who waits for it is told.
void RendezAgent::unreadable(Peer &peer, const Bytes &head, const std::string &why) {
    auto said =
        c10::str("rendez: a message from ", peer.info.name_, " to ", workerInfo_.name_, " cannot be read: ", why);
    TORCH_WARN(said);
    auto [id, is_request] = named_by(head);
    if (is_request) {
        respond_with(peer, said, id);
    } else if (auto call = take(id, &peer)) {
        fail(call, said);
    }
}

void RendezAgent::lost(Peer &peer, const std::exception &error) {
    auto *told = dynamic_cast<const rendez::Error *>(&error);
    auto why = told != nullptr && is_of_end(*told)
                   ? c10::str(peer.info.name_, " has shut down")
                   : c10::str("connection to ", peer.info.name_, " is lost: ", words_of(error));
    {
        std::lock_guard<std::mutex> guard(calls_lock_);
        if (!peer.lost.empty()) {
            return;
        }
        peer.lost = why;
    }
    fail_all(&peer, why);
}

void RendezAgent::request(Peer &peer, Incoming incoming) {
    count(server_calls_, 1);
    c10::intrusive_ptr<JitFuture> future;
    int64_t id = incoming.message->id();
    try {
        future = cb_->operator()(*incoming.message, std::move(incoming.streams));
    } catch (const std::exception &) {
        future = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), getDevices());
        future->setError(std::current_exception());
    }
    incoming.message.reset();
    // A callback is on streams that are behind the work that computes the response: also if that is queued already.
    if (future->completed() && devices_.empty()) {
        count(server_calls_, -1);
        return respond(peer, *future, id);
    }
    count(server_async_, 1);
    future->addCallback([gate = gate_, &peer, id](JitFuture &done) {
        std::shared_lock<std::shared_mutex> guard(gate->responding);
        if (auto *agent = gate->agent) {
            agent->count(agent->server_calls_, -1);
            agent->count(agent->server_async_, -1);
            agent->respond(peer, done, id);
        }
    });
}

void RendezAgent::respond(Peer &peer, JitFuture &future, int64_t id) {
    if (!rpcAgentRunning_.load()) {
        LOG(WARNING) << "RPC agent for " << workerInfo_.name_ << " won't send response to request #" << id
                     << ", as the agent is shutting down";
        return;
    }
    if (future.hasError()) {
        return respond_with(peer, future.tryRetrieveErrorMessage(), id);
    }
    // Where there was no room for the response there may be some for the reason; but no thread of the pool waits again.
    auto explain = [&](const std::string &why) {
        run_apart([gate = gate_, &peer, why, id] {
            std::shared_lock<std::shared_mutex> guard(gate->responding);
            if (auto *agent = gate->agent) {
                agent->respond_with(peer, why, id);
            }
        });
    };
    try {
        auto until = std::chrono::steady_clock::now() + kPatienceForRoom;
        auto message = future.value().toCustomClass<rpc::Message>();
        post(peer, pack(node_->engine(), *message, id, {peer.back, missing("Response", peer.info)}, until), until);
    } catch (const std::exception &error) {
        explain(words_of(error));
    }
}

void RendezAgent::respond_with(Peer &peer, const std::string &why, int64_t id) {
    auto message = rpc::createExceptionResponse(why, id);
    try {
        auto until = std::chrono::steady_clock::now() + kPatienceForRoom;
        post(peer, pack(node_->engine(), *message, id, {peer.back, missing("Response", peer.info)}, until), until);
    } catch (const std::exception &error) {
        LOG(WARNING) << "RPC agent for " << workerInfo_.name_ << " could not respond to " << peer.info.name_ << ": "
                     << error.what();
    }
}

void RendezAgent::response(const CallPtr &call, Incoming incoming) {
    auto counted = c10::make_scope_exit([this] { count(client_calls_, -1); });
    auto &message = incoming.message;
    if (message->type() == rpc::MessageType::EXCEPTION) {
        auto why = std::string(message->payload().begin(), message->payload().end());
        call->future->setError(std::make_exception_ptr(std::runtime_error(why)));
    } else {
        // Who waits for the future waits for what these streams have queued.
        c10::MultiStreamGuard guard(incoming.streams);
        auto storages = message->getStorages();
        call->future->markCompleted(std::move(message), std::move(storages));
    }
}

// The call that is under way, and of that peer if one is named.
RendezAgent::CallPtr RendezAgent::take(int64_t id, const Peer *peer) {
    std::lock_guard<std::mutex> guard(calls_lock_);
    auto found = calls_.find(id);
    if (found == calls_.end() || (peer != nullptr && found->second->to != peer)) {
        return nullptr;
    }
    auto call = found->second;
    drop(found);
    return call;
}

// A call is over: its timer goes with it, which may be days from its time. Under `calls_lock_`; gives the next call.
RendezAgent::Calls::iterator RendezAgent::drop(Calls::iterator call) {
    timers_.erase({call->second->until, call->first});
    return calls_.erase(call);
}

// Functions that the pool runs may wait for this very call.
void RendezAgent::fail(const CallPtr &call, const std::string &why) {
    run_apart([this, call, why] {
        auto counted = c10::make_scope_exit([this] { count(client_calls_, -1); });
        call->future->setError(std::make_exception_ptr(std::runtime_error(why)));
    });
}

void RendezAgent::fail_all(const Peer *peer, const std::string &why) {
    std::vector<CallPtr> all;
    {
        std::lock_guard<std::mutex> guard(calls_lock_);
        for (auto it = calls_.begin(); it != calls_.end();) {
            if (peer == nullptr || it->second->to == peer) {
                all.push_back(it->second);
                it = drop(it);
            } else {
                ++it;
            }
        }
    }
    for (auto &call : all) {
        fail(call, why);
    }
}

void RendezAgent::expire() {
    std::unique_lock<std::mutex> guard(calls_lock_);
    while (rpcAgentRunning_.load()) {
        if (timers_.empty()) {
            timer_.wait_for(guard, std::chrono::seconds(1));
            continue;
        }
        auto [when, id] = *timers_.begin();
        if (when > std::chrono::steady_clock::now()) {
            timer_.wait_until(guard, when);
            continue;
        }
        auto found = calls_.find(id);
        auto call = found->second;
        drop(found);
        guard.unlock();
        auto why = c10::str("RPC ran for more than set timeout (", call->timeout.count(),
                            " ms) and will now be marked with an error");
        fail(call, rpc::makeRPCError(why, rpc::RPCErrorType::TIMEOUT));
        guard.lock();
    }
}

// The calls of all have to be over at one time, so all are asked until none has one. In a dynamic group the others know
// that this worker leaves, and call it no more.
void RendezAgent::join(bool shutdown, float timeout) {
    if (!rpcAgentRunning_.load()) {
        return;
    }
    if (!is_static()) {
        auto is_over = [&] { return client_calls_ == 0 && server_calls_ == 0; };
        std::unique_lock<std::mutex> guard(count_lock_);
        if (timeout <= 0) {
            counted_.wait(guard, is_over);
        } else if (!counted_.wait_for(guard, milliseconds(timeout), is_over)) {
            LOG(WARNING) << "RPC agent for " << workerInfo_.name_ << " leaves while calls are under way";
        }
        return;
    }
    for (;;) {
        {
            std::unique_lock<std::mutex> guard(count_lock_);
            counted_.wait(guard, [&] { return client_calls_ == 0; });
        }
        rpc::syncCallCount(shutdown_, world_size_);
        int calls = 0;
        {
            std::unique_lock<std::mutex> guard(count_lock_);
            calls = client_calls_;
        }
        if (rpc::syncCallCount(shutdown_, world_size_, calls) == 0) {
            break;
        }
    }
    if (shutdown) {
        rpc::syncCallCount(shutdown_, world_size_);
    }
}

void RendezAgent::count(int &counter, int change) {
    // The agent may end once it is told.
    std::lock_guard<std::mutex> guard(count_lock_);
    counter += change;
    counted_.notify_all();
}

rpc::DeviceMap RendezAgent::getDeviceMap(const WorkerInfo &to) const {
    auto found = device_maps_.find(to.name_);
    return found == device_maps_.end() ? rpc::DeviceMap() : found->second;
}

std::unordered_map<std::string, std::string> RendezAgent::getMetrics() {
    size_t timers = 0;
    {
        std::lock_guard<std::mutex> guard(calls_lock_);
        timers = timers_.size();
    }
    std::lock_guard<std::mutex> guard(count_lock_);
    std::unordered_map<std::string, std::string> metrics{
        {"agent.thread_pool_size", std::to_string(pool_.size())},
        {"agent.num_idle_threads", std::to_string(pool_.numAvailable())},
        {"agent.client_active_calls", std::to_string(client_calls_)},
        {"agent.client_timers", std::to_string(timers)},
        {"agent.server_active_calls", std::to_string(server_calls_)},
        {"agent.server_active_async_calls", std::to_string(server_async_)},
    };
    if (isGILProfilingEnabled()) {
        uint64_t waits = gil_waits_;
        double average = waits == 0 ? 0 : static_cast<double>(gil_wait_) / static_cast<double>(waits);
        metrics["agent.gil_average_wait_time_us"] = std::to_string(average);
    }
    return metrics;
}

void RendezAgent::addGilWaitTime(const std::chrono::microseconds wait) {
    gil_wait_ += static_cast<uint64_t>(wait.count());
    ++gil_waits_;
}

} // namespace rendez_torch
