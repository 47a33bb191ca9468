// The RPC backend FAULTY_RENDEZ: an agent that fails and delays messages on purpose, for torch's suites of faults.
#pragma once

#include <map>
#include <set>
#include <string>

#include "rpc_agent.hpp"

namespace rendez_torch {

// What goes wrong, by the types of messages, as torch's tests name them.
struct Faults {
    std::set<rpc::MessageType> failed;
    std::map<rpc::MessageType, std::chrono::milliseconds> delayed;
    // How often each failed message fails before it is sent.
    int times = 0;

    // `delays` are in seconds. Throws for a name that torch's own faulty agent would not know.
    Faults(const std::vector<std::string> &failures, const std::unordered_map<std::string, float> &delays, int times);
};

class FaultyAgent : public RendezAgent {
public:
    FaultyAgent(const c10::intrusive_ptr<c10d::Store> &store, std::string name, worker_id_t id, int world_size,
                float timeout, int threads, Faults faults);

    c10::intrusive_ptr<JitFuture> send(const WorkerInfo &to, c10::intrusive_ptr<rpc::Message> message,
                                       const float timeout, const rpc::DeviceMap &device_map) override;

protected:
    void before_post(rpc::MessageType type) override;

private:
    const Faults faults_;
    std::mutex lock_;
    // How often each message has failed, by what it says.
    std::unordered_map<std::string, int> failed_;
};

} // namespace rendez_torch
