// The members of a process group as tasks of rendez: see group.hpp.
#include "group.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include <c10/util/Exception.h>

namespace rendez_torch {
namespace {

// Codes of statuses, as gRPC numbers them.
constexpr uint32_t kDeadlineExceeded = 4;
constexpr uint32_t kFailedPrecondition = 9;
constexpr uint32_t kUnavailable = 14;

// How long a receive waits for room to begin.
constexpr std::chrono::seconds kPatience{10};

const char *lane_edge(size_t lane) { return lane == 0 ? "c" : "r"; }

std::vector<uint8_t> bytes_of(const std::string &text) { return {text.begin(), text.end()}; }

std::string text_of(const std::vector<uint8_t> &bytes) { return {bytes.begin(), bytes.end()}; }

bool is_of_peer(const rendez::Error &error) { return error.reason().rfind("PEER", 0) == 0; }

// What another rank says, of itself or of a third, is no loss of it.
bool is_told_by_peer(const rendez::Error &error) { return error.reason() == "PEER_STATUS"; }
bool is_loss(const rendez::Error &error) { return is_of_peer(error) && !is_told_by_peer(error); }

// Whether a send that could wait for room was refused for want of it.
bool is_without_room(const rendez_status *status) {
    return std::string(rendez::api().status_reason(status)).rfind("PARKED_BYTES", 0) == 0;
}

uint64_t random_step() {
    std::random_device dice;
    uint64_t step = (static_cast<uint64_t>(dice()) << 32) | dice();
    return step == 0 ? 1 : step;
}

rendez_tensor *small_value(rendez_engine *engine, uint64_t number) {
    Room room(engine, sizeof number);
    std::memcpy(room.data(), &number, sizeof number);
    return room.finish();
}

// A callback of a receive, whose context is a function that is called once.
void tell(void *context, rendez_status *status, rendez_value value) {
    using Told = std::function<void(rendez_status *, rendez_tensor *)>;
    std::unique_ptr<Told> told(static_cast<Told *>(context));
    try {
        (*told)(status, value.tensor);
    } catch (const std::exception &error) {
        TORCH_WARN("rendez: a receive could not be taken in: ", words_of(error));
    }
}

} // namespace

bool is_full(const std::string &reason) {
    constexpr std::array kFull{"WAITERS", "WAITERS_OF_KEY", "KEYS", "STEPS", "MAILBOX_FULL"};
    return std::find(kFull.begin(), kFull.end(), reason) != kFull.end();
}

void when_there_is_room(const std::function<void()> &begin) {
    for (auto until = Clock::now() + kPatience;; std::this_thread::sleep_for(kBetweenTries)) {
        try {
            return begin();
        } catch (const rendez::Error &error) {
            if (!is_full(error.reason()) || Clock::now() >= until) {
                throw;
            }
        }
    }
}

void begin_recv(rendez_engine *engine, uint64_t step, const rendez::Key &key,
                std::function<void(rendez_status *, rendez_tensor *)> told) {
    auto context = std::make_unique<std::function<void(rendez_status *, rendez_tensor *)>>(std::move(told));
    rendez::check(rendez::api().recv_async(engine, step, key.get(), RENDEZ_FOREVER, tell, context.get(), nullptr));
    context.release();
}

Until Until::after(std::chrono::milliseconds timeout, const char *what) {
    timeout = std::min<std::chrono::milliseconds>(timeout, kLongest);
    return {Clock::now() + timeout, timeout, what};
}

uint64_t Until::patience() const {
    auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
    return left > 0 ? static_cast<uint64_t>(left) : 0;
}

std::shared_ptr<Group> Group::meet(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size) {
    std::shared_ptr<Group> group(new Group(rank, size));
    group->node_ = Node::get();
    auto cards = group->exchange_cards(*store);
    for (int other = 0; other < size; ++other) {
        auto &peer = group->peers_[static_cast<size_t>(other)];
        peer = std::make_unique<Peer>();
        if (other != rank) {
            group->make_keys(*peer, group->node_->meet(cards[static_cast<size_t>(other)]));
        }
    }
    try {
        for (int other = 0; other < size; ++other) {
            if (other != rank) {
                when_there_is_room([&] { group->answer_when_asked(other); });
                when_there_is_room([&] { group->settle_when_answered(other); });
            }
        }
    } catch (const std::exception &) {
        // What has begun would wait for ever.
        rendez::api().status_free(rendez::api().step_finish(group->engine(), group->step_));
        throw;
    }
    return group;
}

// Groups may meet over one store one after the other, so what an earlier one left there has other names: each member
// counts its meetings, and as all take part in each, they count alike.
std::vector<std::string> Group::exchange_cards(c10d::Store &store) {
    auto count = "rendez/meetings/" + std::to_string(rank_);
    auto meeting = "rendez/" + std::to_string(store.add(count, 1)) + "/";
    try {
        if (rank_ == 0) {
            // Others may have met in the step of an attempt of ours that failed.
            store.compareSet(meeting + "step", {}, bytes_of(std::to_string(random_step())));
        }
        store.set(meeting + std::to_string(rank_), bytes_of(node_->card()));
        std::vector<std::string> cards;
        for (int other = 0; other < size_; ++other) {
            cards.push_back(text_of(store.get(meeting + std::to_string(other))));
        }
        step_ = std::stoull(text_of(store.get(meeting + "step")));
        return cards;
    } catch (const std::exception &) {
        // Another has not come, and has not counted this meeting: who tries again meets it there. A process that is
        // killed as it waits counts on, and its successor over the same store meets none: it wants a store of its own.
        try {
            store.add(count, -1);
        } catch (const std::exception &) {
            // The store is gone.
        }
        throw;
    }
}

void Group::make_keys(Peer &peer, const Task &task) const {
    const Task &own = node_->task();
    auto make = [](const Task &from, const Task &to, const std::string &edge) {
        return std::make_unique<rendez::Key>(key(from, to, edge));
    };
    peer.task = task;
    for (size_t lane = 0; lane < 2; ++lane) {
        peer.to[lane] = make(own, task, lane_edge(lane));
        peer.from[lane] = make(task, own, lane_edge(lane));
    }
    peer.ask = make(own, task, "ask");
    peer.asked = make(task, own, "ask");
    peer.answer = make(own, task, "answer");
    peer.answered = make(task, own, "answer");
}

Room Group::room(size_t size, const Until &until) const {
    return Room::until(until.deadline, engine(), rendez::meta(kByte, {size}));
}

// Values of a rank come in order, so only the first of a piece has a stamp. Later ones say by the rank of their shape
// that they are, and whether more come.
Room Group::room(size_t size, const Stamp &stamp, bool is_first, const Until &until) const {
    if (!is_first) {
        auto meta = stamp.goes_on != 0 ? rendez::meta(kByte, {1, 1, size}) : rendez::meta(kByte, {1, size});
        return Room::until(until.deadline, engine(), meta);
    }
    Room made = room(size + sizeof stamp, until);
    std::memcpy(made.data() + size, &stamp, sizeof stamp);
    return made;
}

void Group::send(int to, Lane lane, rendez_tensor *value, const Until &until) {
    rendez::TensorHandle owned(value);
    Peer &peer = this->peer(to);
    check_there(to, until);
    send(to, *peer.to[static_cast<size_t>(lane)], owned.release(), until);
}

void Group::send(int to, const rendez::Key &key, rendez_tensor *value, const Until &until, const Room *again) {
    // Counted before, since the peer may have it before this returns. At once if there is room; waiting for room costs
    // a little more.
    auto &sent = peer(to).sent;
    sent.fetch_add(1, std::memory_order_relaxed);
    auto *status = rendez::api().send(engine(), step_, key.get(), value, until.patience());
    // What is longer than may wait for receivers goes only when nothing else waits, and has no turn among what waits.
    // To a rank that is lost it never goes, and the engine then speaks of room all the same.
    const std::atomic<bool> &is_lost = peer(to).is_lost;
    while (status != nullptr && again != nullptr && is_without_room(status) && !is_lost.load() &&
           Clock::now() < until.deadline) {
        rendez::api().status_free(status);
        std::this_thread::sleep_for(kBetweenTries);
        status = rendez::api().send(engine(), step_, key.get(), again->share(), until.patience());
    }
    if (status != nullptr) {
        // Or else the group would wait for its receipt when it ends.
        sent.fetch_sub(1, std::memory_order_relaxed);
        auto error = failure(rendez::Error(status), to, until, true);
        if (again != nullptr) {
            check_there(to, until);
        }
        std::rethrow_exception(error);
    }
}

Bytes Group::recv(int from, Lane lane, size_t size, const Stamp &stamp, bool is_first, const Until &until) {
    const rendez::Key &key = *peer(from).from[static_cast<size_t>(lane)];
    rendez_value value = {};
    if (auto *status = rendez::api().recv(engine(), step_, key.get(), until.patience(), &value)) {
        std::rethrow_exception(failure(rendez::Error(status), from, until));
    }
    Bytes bytes(value.tensor);
    count_received(from);
    rendez_meta meta = {};
    rendez::check(rendez::api().tensor_meta(bytes.get(), &meta));
    std::optional<Stamp> theirs;
    if (meta.rank == 1 && bytes.size() >= sizeof stamp) {
        theirs.emplace(bytes.data() + bytes.size() - sizeof stamp);
    }
    bool is_same = is_first ? theirs && bytes.size() == size + sizeof stamp && *theirs == stamp
                            : meta.rank == (stamp.goes_on != 0 ? 3 : 2) && bytes.size() == size;
    if (!is_same) {
        auto sent = theirs ? c10::str("its part of ", theirs->told(bytes.size() - sizeof stamp))
                           : c10::str("a later part of one (", bytes.size(), " bytes",
                                      meta.rank > 2 ? " and more)" : ")");
        auto why = c10::str("rendez: ranks ", from, " and ", rank_, " called different collectives: rank ", from,
                            " sent ", sent, ", and rank ", rank_, " waited for ", is_first ? "" : "a later part of ",
                            stamp.told(size), ". All ranks have to call the same collectives in the same order, with "
                            "tensors of the same size and type; TORCH_DISTRIBUTED_DEBUG=DETAIL compares each call "
                            "before it runs");
        mark_failed(why);
        end(kFailedPrecondition, why);
        C10_THROW_ERROR(DistBackendError, why);
    }
    return bytes;
}

std::string message_edge(int tag) { return c10::str("p", tag % kMessageEdges); }

void Group::send_message(int to, const std::string &edge, const Room &room, const Until &until) {
    Peer &peer = this->peer(to);
    check_there(to, until);
    const rendez::Key *key = nullptr;
    {
        std::lock_guard<std::mutex> guard(edges_lock_);
        auto &known = peer.edges[edge];
        if (known == nullptr) {
            known = std::make_unique<const rendez::Key>(rendez_torch::key(node_->task(), peer.task, edge));
        }
        key = known.get();
    }
    send(to, *key, room.share(), until, &room);
}

Bytes Group::recv_message(int from, const std::string &edge, const Until &until) {
    rendez_value value = {};
    if (auto *status = rendez::api().recv(engine(), step_, message_key(from, edge).get(), until.patience(), &value)) {
        std::rethrow_exception(failure(rendez::Error(status), from, until));
    }
    Bytes bytes(value.tensor);
    count_received(from);
    return bytes;
}

rendez::Key Group::message_key(int from, const std::string &edge) const {
    return rendez_torch::key(peer(from).task, node_->task(), edge);
}

void Group::count_received(int from) {
    Peer &peer = this->peer(from);
    uint64_t received = peer.received.fetch_add(1) + 1;
    if (uint64_t wanted = peer.wanted.load(); wanted != 0 && received >= wanted) {
        answer(peer);
    }
}

std::exception_ptr Group::failure(const rendez::Error &error, int peer, const Until &until, bool is_send) const {
    bool has_left = is_of_end(error) && !has_left_.load();
    auto message = c10::str("rendez: ", until.what, " failed with rank ", peer, ": ", error.what());
    if (error.code() == kDeadlineExceeded) {
        message = c10::str("rendez: Timed out waiting ", until.timeout.count(), "ms for rank ", peer, " in ",
                           until.what,
                           is_send ? ": there is no room for what goes to it, as it or another has not taken what was "
                                     "sent before (`parked_bytes`, `parked_bytes_per_step`)"
                                   : "");
    } else if (has_left) {
        message = c10::str("rendez: Connection closed by peer: rank ", peer, " has left the group, in ", until.what,
                           " of rank ", rank_, ": it has ended, or destroyed the group, perhaps after an error");
    } else if (is_of_end(error)) {
        message = c10::str("rendez: ", until.what, " of rank ", rank_, " failed: this rank has left the group");
    } else if (error.code() == kUnavailable && is_loss(error)) {
        message = loss(peer, until, error.what());
    } else if (is_told_by_peer(error)) {
        // Some rank ended the group: see `end`. That need not be the one which was waited for.
        message = c10::str("rendez: ", until.what, " of rank ", rank_, " failed: ", error.what());
    }
    bool is_mismatch = is_told_by_peer(error) && error.code() == kFailedPrecondition;
    if (has_left || (is_of_peer(error) && !is_mismatch)) {
        return std::make_exception_ptr(
            c10::DistNetworkError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message));
    }
    return std::make_exception_ptr(
        c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message));
}

std::string Group::loss(int rank, const Until &until, const std::string &why) const {
    return c10::str("rendez: Connection closed by peer: rank ", rank, " is lost, in ", until.what, " of rank ", rank_,
                    ". ", why);
}

// A value for a rank that is lost would wait for it, and be dropped.
void Group::check_there(int rank, const Until &until) {
    if (const Peer &peer = this->peer(rank); peer.is_lost.load()) {
        C10_THROW_ERROR(DistNetworkError, loss(rank, until, peer.why_lost));
    }
}

void Group::abort(const std::string &why, bool is_loss) {
    mark_failed(why, is_loss);
    end(kUnavailable, why);
}

void Group::end(uint32_t code, const std::string &why) {
    if (!has_left_.load()) {
        rendez::api().status_free(rendez::api().step_abort(engine(), step_, code, why.c_str()));
    }
}

void Group::check_usable() const {
    if (is_forked()) {
        C10_THROW_ERROR(DistBackendError, "rendez: this process was forked from the one that made the group, whose "
                                          "threads are not here: fork before groups are made, or exec in the child");
    }
    if (is_failed_.load()) {
        std::lock_guard<std::mutex> guard(failed_lock_);
        auto said = c10::str("rendez: the group is closed, as it failed before: ", why_failed_);
        if (is_failed_of_loss_) {
            C10_THROW_ERROR(DistNetworkError, said);
        }
        C10_THROW_ERROR(DistBackendError, said);
    }
}

void Group::mark_failed(const std::string &why, bool is_loss) {
    {
        std::lock_guard<std::mutex> guard(failed_lock_);
        if (is_failed_.load()) {
            return;
        }
        why_failed_ = why;
        is_failed_of_loss_ = is_loss;
        is_failed_.store(true);
    }
    // Who waits for a receipt of ours waits in vain.
    for (int other = 0; other < size_; ++other) {
        if (other != rank_ && peer(other).wanted.load() != 0) {
            answer(peer(other));
        }
    }
}

void Group::answer_when_asked(int from) {
    std::weak_ptr<Group> weak = weak_from_this();
    begin_recv(engine(), step_, *peer(from).asked, [weak, from](rendez_status *status, rendez_tensor *value) {
        rendez::api().status_free(status);
        if (status != nullptr) {
            return;
        }
        Bytes bytes(value);
        auto group = weak.lock();
        if (group == nullptr || bytes.size() != sizeof(uint64_t)) {
            return;
        }
        uint64_t wanted = 0;
        std::memcpy(&wanted, bytes.data(), sizeof wanted);
        Peer &peer = group->peer(from);
        peer.wanted.store(wanted);
        if (peer.received.load() >= wanted || group->is_failed_.load()) {
            group->answer(peer);
        }
    });
}

// From the beginning, so that the loss of the peer is known before it is asked.
void Group::settle_when_answered(int from) {
    std::weak_ptr<Group> weak = weak_from_this();
    begin_recv(engine(), step_, *peer(from).answered, [weak, from](rendez_status *status, rendez_tensor *value) {
        rendez::api().tensor_free(value);
        auto error = status == nullptr ? std::nullopt : std::optional<rendez::Error>(status);
        if (auto group = weak.lock()) {
            Peer &peer = group->peer(from);
            if (error && is_loss(*error)) {
                peer.why_lost = error->what();
                peer.is_lost.store(true);
            }
            std::lock_guard<std::mutex> guard(group->settled_lock_);
            peer.is_settled = true;
            group->settled_.notify_all();
        }
    });
}

void Group::answer(Peer &peer) {
    if (peer.wanted.exchange(0) != 0) {
        tell(peer);
    }
}

void Group::tell(Peer &peer) {
    if (peer.is_told.exchange(true)) {
        return;
    }
    try {
        auto *status =
            rendez::api().send(engine(), step_, peer.answer->get(), small_value(engine(), peer.received.load()), 0);
        // The peer has gone, and needs no answer.
        rendez::api().status_free(status);
    } catch (const std::exception &error) {
        // The engine has ended, say. Those who are told of a failure come here too, and have to hear of that one.
        TORCH_WARN("rendez: a rank could not be told what was received of it: ", error.what());
    }
}

void Group::leave(std::chrono::milliseconds patience) {
    if (has_left_.exchange(true)) {
        return;
    }
    auto until = Until::after(patience, "leaving the group");
    if (!is_failed_.load()) {
        for (int other = 0; other < size_; ++other) {
            uint64_t sent = other == rank_ ? 0 : peer(other).sent.load();
            if (sent != 0) {
                // One that has gone needs nothing of ours.
                auto ask = peer(other).ask->get();
                rendez::api().status_free(rendez::api().send(engine(), step_, ask, small_value(engine(), sent), 0));
            }
        }
        std::unique_lock<std::mutex> guard(settled_lock_);
        settled_.wait_until(guard, until.deadline, [&] {
            for (int other = 0; other < size_; ++other) {
                if (other != rank_ && peer(other).sent.load() != 0 && !peer(other).is_settled) {
                    return false;
                }
            }
            return true;
        });
    }
    // Who leaves later does not wait for a receipt of this rank.
    for (int other = 0; other < size_; ++other) {
        if (other != rank_) {
            tell(peer(other));
        }
    }
    rendez::api().status_free(rendez::api().step_finish(engine(), step_));
}

} // namespace rendez_torch
