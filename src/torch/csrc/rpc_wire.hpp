// A message of torch's RPC as values of rendez: one head, and one value for each large storage.
//
// Storages travel, not tensors: views, strides and sharing arrive as they left. A storage is copied once, into the
// engine's memory (RPC is by value, and its sender may write on); a receiver of this machine maps it privately, so that
// what is written to it there stays there, and pages that are only read are never copied. Small ones are in the head.
// What lies on a device goes by way of the engine's memory there, to the device that the receiver has for it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include "library.hpp"

namespace rendez_torch {

namespace rpc = torch::distributed::rpc;

// What is sent, in this order.
struct Outgoing {
    std::vector<Room> values;
};

// To which device of the receiver's what lies on a device of ours goes, and what is said of one that has none.
struct Destination {
    const rpc::DeviceMap &devices;
    std::string missing;
};

// Copies a message. Throws for what cannot travel, before anything is sent; waits so long for room.
Outgoing pack(rendez_engine *engine, const rpc::Message &message, int64_t id, const Destination &to,
              std::chrono::steady_clock::time_point until);

// How many values follow a head. Throws if it is malformed.
size_t values_behind(const Bytes &head);

// The number of the message of a head, and whether it is a request.
std::pair<int64_t, bool> named_by(const Bytes &head);

// A message, and streams of its own on which its tensors of devices come.
struct Incoming {
    c10::intrusive_ptr<rpc::Message> message;
    std::vector<c10::Stream> streams;
};

// How much of a worker's memory lives on in tensors of this process, and the most of it: that worker's memory has to
// last for all, so what is beyond is copied out of it.
struct Kept {
    std::atomic<uint64_t> bytes{0}, most{0};
};

// The message of a head and the values that followed it.
Incoming unpack(rendez_engine *engine, const Bytes &head, std::vector<Bytes> values, const std::shared_ptr<Kept> &kept);

} // namespace rendez_torch
