// Who is in the group of an RPC agent, and how it reaches them: see rpc_agent.hpp.
#include "rpc_agent.hpp"

#include <algorithm>
#include <random>
#include <sstream>
#include <string_view>

#include "group.hpp"

namespace rendez_torch {
namespace {

// A worker's maps as it tells the others: a line for each device, with the worker it is for and the device there.
std::string told(const DeviceMaps &maps) {
    std::string text;
    for (const auto &[to, map] : maps) {
        for (const auto &[from, there] : map) {
            text += c10::str(to, " ", from, " ", there, "\n");
        }
    }
    return text;
}

// What another worker told of its devices, as the way back from `name`.
rpc::DeviceMap way_back(const std::vector<uint8_t> &text, const std::string &name) {
    rpc::DeviceMap back;
    std::istringstream lines(std::string(text.begin(), text.end()));
    for (std::string to, from, there; lines >> to >> from >> there;) {
        if (to == name) {
            back.emplace(c10::Device(there), c10::Device(from));
        }
    }
    return back;
}

// Where it is said of the worker that left this card that it is lost.
std::string of_loss(const std::vector<uint8_t> &card) { return "lost/" + std::string(card.begin(), card.end()); }

// What is said of a change that did not come about.
constexpr std::string_view kNoChange = "none";

// How often the store is asked whether a dynamic group has changed.
constexpr std::chrono::milliseconds kBetweenLooks{20};

} // namespace

RendezAgent::Peer &RendezAgent::add(std::unique_ptr<Peer> peer) {
    std::lock_guard<std::mutex> guard(members_lock_);
    // Who had its number or its name was lost, and has not left.
    for (auto other = peers_.begin(); other != peers_.end();) {
        const WorkerInfo &known = other->second->info;
        if (known.id_ == peer->info.id_ || known.name_ == peer->info.name_) {
            by_name_.erase(known.name_);
            gone_.push_back(std::move(other->second));
            other = peers_.erase(other);
        } else {
            ++other;
        }
    }
    by_name_[peer->info.name_] = peer->info.id_;
    Peer &added = *(peers_[peer->info.id_] = std::move(peer));
    // What this one keeps of each, if they have as much for others as this one has.
    uint64_t others = std::max<uint64_t>(peers_.size(), 2) - 1;
    for (auto &[id, known] : peers_) {
        known->kept->most = kept_bytes_ / others;
    }
    return added;
}

// The workers of a dynamic group, as the store has them: a line for each, without those that are known to be lost. One
// worker at a time reads and writes it.
std::vector<WorkerInfo> RendezAgent::listed() {
    std::vector<WorkerInfo> workers;
    if (names_.check({"workers"})) {
        auto text = names_.get("workers");
        std::istringstream lines(std::string(text.begin(), text.end()));
        std::string name;
        for (int64_t id = 0; lines >> id && lines.get() && std::getline(lines, name);) {
            if (WorkerInfo worker(name, id); !is_lost(worker)) {
                workers.push_back(std::move(worker));
            }
        }
    }
    return workers;
}

void RendezAgent::list(bool is_there) {
    std::string text;
    for (const WorkerInfo &worker : listed()) {
        if (worker.id_ != workerInfo_.id_) {
            text += c10::str(worker.id_, " ", worker.name_, "\n");
        }
    }
    if (is_there) {
        text += c10::str(workerInfo_.id_, " ", workerInfo_.name_, "\n");
    }
    names_.set("workers", std::vector<uint8_t>(text.begin(), text.end()));
}

// Whether a worker of the group has said of another that it is lost: then it hears no more of changes.
bool RendezAgent::is_lost(const WorkerInfo &worker) {
    return cards_.check({worker.name_}) && names_.check({of_loss(cards_.get(worker.name_))});
}

// Says so of those that this one has lost.
void RendezAgent::tell_of_losses() {
    std::vector<std::vector<uint8_t>> cards;
    {
        std::scoped_lock guard(members_lock_, calls_lock_);
        for (auto &[id, peer] : peers_) {
            if (!peer->lost.empty() && !peer->is_told_of) {
                peer->is_told_of = true;
                cards.push_back(peer->card);
            }
        }
    }
    for (const auto &card : cards) {
        names_.set(of_loss(card), std::vector<uint8_t>{1});
    }
}

// Who is listed has to hear of later changes: no worker whose joining fails, and none that leaves.
void RendezAgent::announce(bool is_join, float timeout) {
    if (!is_join) {
        list(false);
    }
    // All wait for the last change, and a worker that died may have had its number and not said what it is.
    if (auto last = names_.add("changes", 0); last > 0) {
        std::vector<uint8_t> none(kNoChange.begin(), kNoChange.end());
        names_.compareSet(c10::str("change/", last), {}, none);
    }
    auto change = c10::str("change/", names_.add("changes", 1));
    auto said = c10::str(is_join ? "join " : "leave ", workerInfo_.id_, " ", workerInfo_.name_);
    names_.set(change, std::vector<uint8_t>(said.begin(), said.end()));
    auto refused = change + "/refused";
    auto until = std::chrono::steady_clock::now() + milliseconds(timeout);
    for (const WorkerInfo &worker : getWorkerInfos()) {
        auto heard = c10::str(change, "/", worker.id_);
        while (worker.id_ != workerInfo_.id_ && !names_.check({heard}) && !is_lost(worker)) {
            if (names_.check({refused})) {
                auto why = names_.get(refused);
                TORCH_CHECK(false, "rendez: ", std::string(why.begin(), why.end()));
            }
            TORCH_CHECK(std::chrono::steady_clock::now() < until, "rendez: worker ", worker.name_, " did not hear in ",
                        timeout, " s that ", workerInfo_.name_, is_join ? " joins" : " leaves");
            std::this_thread::sleep_for(kBetweenLooks);
            tell_of_losses();
        }
    }
    if (is_join) {
        // It may have been lost to others in an earlier life in the group, in this same process.
        names_.deleteKey(of_loss(peer(workerInfo_.id_).card));
        list(true);
    }
}

void RendezAgent::watch() {
    while (rpcAgentRunning_.load()) {
        tell_of_losses();
        auto change = c10::str("change/", next_change_);
        if (!names_.check({change})) {
            std::this_thread::sleep_for(kBetweenLooks);
            continue;
        }
        auto text = names_.get(change);
        if (std::equal(text.begin(), text.end(), kNoChange.begin(), kNoChange.end())) {
            ++next_change_;
            continue;
        }
        std::istringstream said(std::string(text.begin(), text.end()));
        std::string what, name;
        int64_t id = -1;
        said >> what >> id &&said.get() && std::getline(said, name);
        WorkerInfo worker(name, id);
        if (worker.id_ == workerInfo_.id_ && what == "leave") {
            // The next worker of this number hears what comes.
            return;
        }
        ++next_change_;
        try {
            if (worker.id_ != workerInfo_.id_) {
                what == "join" ? joined(worker) : left(worker);
            }
            names_.set(c10::str(change, "/", workerInfo_.id_), std::vector<uint8_t>{1});
        } catch (const std::exception &error) {
            // That change failed, and others will come.
            auto why = c10::str(workerInfo_.name_, " cannot take in that ", name, " joins: ", words_of(error));
            names_.set(change + "/refused", std::vector<uint8_t>(why.begin(), why.end()));
        }
    }
}

// Threads of the user's may call a worker as soon as it is in the group, so it is met before.
void RendezAgent::joined(const WorkerInfo &worker) {
    auto peer = std::make_unique<Peer>(worker);
    meet(*peer);
    Peer &added = add(std::move(peer));
    when_there_is_room([&] { listen(added); });
}

void RendezAgent::left(const WorkerInfo &worker) {
    std::lock_guard<std::mutex> guard(members_lock_);
    auto found = peers_.find(worker.id_);
    if (found != peers_.end() && found->second->info.name_ == worker.name_) {
        gone_.push_back(std::move(found->second));
        peers_.erase(found);
        by_name_.erase(worker.name_);
    }
}

// One step for all workers: who is first says which. It lies under a name that no worker has: those have no slash.
void RendezAgent::meet() {
    std::random_device dice;
    auto own = std::to_string((static_cast<uint64_t>(dice()) << 32 | dice()) | 1);
    auto agreed = cards_.compareSet("/step", {}, std::vector<uint8_t>(own.begin(), own.end()));
    step_ = std::stoull(std::string(agreed.begin(), agreed.end()));
    auto maps = told(device_maps_);
    cards_.set(workerInfo_.name_ + "/devices", std::vector<uint8_t>(maps.begin(), maps.end()));
    auto card = node_->card();
    cards_.set(workerInfo_.name_, std::vector<uint8_t>(card.begin(), card.end()));
    for (auto &[id, peer] : peers_) {
        meet(*peer);
    }
}

void RendezAgent::meet(Peer &peer) {
    peer.card = cards_.get(peer.info.name_);
    auto task = node_->meet(std::string(peer.card.begin(), peer.card.end()));
    auto make = [&](const Task &from, const Task &to, const char *edge) {
        return std::make_unique<rendez::Key>(key(from, to, edge));
    };
    peer.back = way_back(cards_.get(peer.info.name_ + "/devices"), workerInfo_.name_);
    peer.to_head = make(node_->task(), task, "rpc");
    peer.to_part = make(node_->task(), task, "rpc.part");
    peer.from_head = make(task, node_->task(), "rpc");
    peer.from_part = make(task, node_->task(), "rpc.part");
}

RendezAgent::Peer &RendezAgent::peer(worker_id_t id) {
    std::lock_guard<std::mutex> guard(members_lock_);
    auto found = peers_.find(id);
    TORCH_CHECK(found != peers_.end(), "Unknown destination worker ", id);
    return *found->second;
}

const WorkerInfo &RendezAgent::getWorkerInfo(const std::string &name) const {
    std::lock_guard<std::mutex> guard(members_lock_);
    auto found = by_name_.find(name);
    TORCH_CHECK(found != by_name_.end(), "could not find destination ", name);
    return peers_.at(found->second)->info;
}

const WorkerInfo &RendezAgent::getWorkerInfo(worker_id_t id) const {
    std::lock_guard<std::mutex> guard(members_lock_);
    auto found = peers_.find(id);
    TORCH_CHECK(found != peers_.end(), "could not find destination ", id);
    return found->second->info;
}

std::vector<WorkerInfo> RendezAgent::getWorkerInfos() const {
    std::lock_guard<std::mutex> guard(members_lock_);
    std::vector<WorkerInfo> all;
    for (auto &[id, peer] : peers_) {
        all.push_back(peer->info);
    }
    return all;
}

} // namespace rendez_torch
