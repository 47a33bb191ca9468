// The RPC backend FAULTY_RENDEZ: see faulty_agent.hpp.
#include "faulty_agent.hpp"

#include <thread>

#include <torch/csrc/distributed/rpc/utils.h>

namespace rendez_torch {
namespace {

rpc::MessageType type_named(const std::string &name) {
    using Type = rpc::MessageType;
    static const std::map<std::string, Type> types{
        {"RREF_FORK_REQUEST", Type::RREF_FORK_REQUEST},
        {"RREF_CHILD_ACCEPT", Type::RREF_CHILD_ACCEPT},
        {"RREF_USER_DELETE", Type::RREF_USER_DELETE},
        {"CLEANUP_AUTOGRAD_CONTEXT_REQ", Type::CLEANUP_AUTOGRAD_CONTEXT_REQ},
        {"PYTHON_REMOTE_CALL", Type::PYTHON_REMOTE_CALL},
        {"SCRIPT_REMOTE_CALL", Type::SCRIPT_REMOTE_CALL},
        {"PYTHON_CALL", Type::PYTHON_CALL},
        {"SCRIPT_CALL", Type::SCRIPT_CALL},
        {"PYTHON_RREF_FETCH_CALL", Type::PYTHON_RREF_FETCH_CALL},
        {"SCRIPT_RREF_FETCH_CALL", Type::SCRIPT_RREF_FETCH_CALL},
    };
    auto found = types.find(name);
    TORCH_CHECK(found != types.end(), "rendez: no message type that can fail or be delayed is named ", name);
    return found->second;
}

} // namespace

Faults::Faults(const std::vector<std::string> &failures, const std::unordered_map<std::string, float> &delays,
               int often)
    : times(often) {
    TORCH_CHECK(often >= 0, "rendez: a message cannot fail ", often, " times");
    for (const std::string &name : failures) {
        failed.insert(type_named(name));
    }
    for (const auto &[name, seconds] : delays) {
        delayed[type_named(name)] = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
    }
}

FaultyAgent::FaultyAgent(const c10::intrusive_ptr<c10d::Store> &store, std::string name, worker_id_t id, int world_size,
                         float timeout, int threads, Faults faults)
    : RendezAgent(store, std::move(name), id, world_size, timeout, threads, {}, {}), faults_(std::move(faults)) {}

c10::intrusive_ptr<JitFuture> FaultyAgent::send(const WorkerInfo &to, c10::intrusive_ptr<rpc::Message> message,
                                                const float timeout, const rpc::DeviceMap &device_map) {
    if (faults_.failed.count(message->type()) != 0) {
        std::string said(message->payload().begin(), message->payload().end());
        std::lock_guard<std::mutex> guard(lock_);
        if (failed_[said] < faults_.times) {
            ++failed_[said];
            auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
            auto why = rpc::makeRPCError(c10::str("Send attempt failed intentionally for ", said),
                                         rpc::RPCErrorType::INTENTIONAL_FAILURE);
            future->setError(std::make_exception_ptr(std::runtime_error(why)));
            return future;
        }
    }
    return RendezAgent::send(to, std::move(message), timeout, device_map);
}

void FaultyAgent::before_post(rpc::MessageType type) {
    auto found = faults_.delayed.find(type);
    if (found != faults_.delayed.end()) {
        std::this_thread::sleep_for(found->second);
    }
}

} // namespace rendez_torch
