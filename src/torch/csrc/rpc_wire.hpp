// A message of torch's RPC as values of rendez: one head, and one value for each large storage.
//
// Storages travel, not tensors: views, strides and sharing arrive as they left. A storage is copied once, into the
// engine's memory (RPC is by value, and its sender may write on); a receiver of this machine maps it privately, so that
// what is written to it there stays there, and pages that are only read are never copied. Small ones are in the head.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/rpc/message.h>

#include "library.hpp"

namespace rendez_torch {

namespace rpc = torch::distributed::rpc;

// What is sent, in this order.
struct Outgoing {
    std::vector<Room> values;
};

// Copies a message. Throws for what cannot travel, before anything is sent.
Outgoing pack(rendez_engine *engine, const rpc::Message &message, int64_t id);

// How many values follow a head. Throws if it is malformed.
size_t values_behind(const Bytes &head);

// The message of a head and the values that followed it.
c10::intrusive_ptr<rpc::Message> unpack(const Bytes &head, std::vector<Bytes> values);

} // namespace rendez_torch
