// Tensors of GPUs: storages that go to the engine's memory of their device, and values that come from there.
//
// A storage is copied to the engine's memory on its own device, from where a process of this machine that sees the
// device reads it; any other gets the bytes by way of its host. The host waits for no copy where the engine has devices
// (the setting `devices`); where it has none, torch copies to the host and back.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "library.hpp"

namespace rendez_torch {

// Bytes of a tensor on a device as a value to be sent, in order with the stream of the device that is current. Waits so
// long for room.
Room value_of(rendez_engine *engine, const at::Tensor &tensor, std::chrono::steady_clock::time_point until);

// A value's bytes as memory of torch's on `device`, in order with the streams that are current.
at::DataPtr on_device(rendez_engine *engine, Bytes value, c10::Device device);

// A stream of torch's pool for each of these devices but the CPU.
std::vector<c10::Stream> own_streams(const std::vector<c10::Device> &devices);

// The devices of tensors but the CPU, each once.
std::vector<c10::Device> devices_of(const std::vector<at::Tensor> &tensors);

// Work of this process's threads in order with what the caller's streams have queued: on streams of its own, behind it.
class Behind {
public:
    explicit Behind(const std::vector<at::Tensor> &tensors);
    // Does `what` with those streams current, and waits until they have done what it queued: no copy of gaps, say, is
    // under way then.
    template <class What> void run(What what) const {
        if (marks_.empty()) {
            return what();
        }
        auto streams = own_streams(devices_);
        for (size_t i = 0; i < streams.size(); ++i) {
            marks_[i]->block(streams[i]);
        }
        c10::MultiStreamGuard guard(streams);
        what();
        for (const c10::Stream &stream : streams) {
            stream.synchronize();
        }
    }

private:
    std::vector<c10::Device> devices_;
    // Of each device its own. Events do not copy, and what is queued does.
    std::vector<std::shared_ptr<c10::Event>> marks_;
};

} // namespace rendez_torch
