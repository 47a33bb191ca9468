// Tensors of GPUs: see devices.hpp.
#include "devices.hpp"

#include <algorithm>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

namespace rendez_torch {
namespace {

// The driver's handle of the stream that is current on a device. torch gives it by this function in all versions, and
// the library that has it is there only where torch was built for GPUs.
void *current_stream(c10::Device device) {
    using Get = int32_t (*)(int32_t, void **);
    static const auto get = [] {
        void *library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
        return library == nullptr ? nullptr
                                  : reinterpret_cast<Get>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
    }();
    void *stream = nullptr;
    TORCH_CHECK(get != nullptr && get(device.index(), &stream) == 0, "rendez: this PyTorch tells no streams of ",
                device);
    return stream;
}

// Bytes of a device as a tensor of torch's, which keeps nothing.
at::Tensor seen(void *data, size_t size, c10::Device device) {
    return at::for_blob(data, {static_cast<int64_t>(size)})
        .options(at::TensorOptions().dtype(at::kByte).device(device))
        .target_device(device)
        .make_tensor();
}

bool is_none(rendez_status *status) {
    if (status == nullptr) {
        return false;
    }
    rendez::Error error(status);
    if (error.reason() != "DEVICE_MISSING") {
        throw error;
    }
    return true;
}

} // namespace

Room value_of(rendez_engine *engine, const at::Tensor &tensor, std::chrono::steady_clock::time_point until) {
    at::NoGradGuard no_grad;
    const c10::Storage &storage = tensor.storage();
    size_t size = storage.nbytes();
    c10::Device device = tensor.device();
    rendez_meta meta = rendez::meta(kByte, {size});
    rendez_tensor *made = nullptr;
    auto address = reinterpret_cast<uint64_t>(storage.data());
    auto number = static_cast<uint32_t>(device.index());
    void *stream = current_stream(device);
    for (;; std::this_thread::sleep_for(kBetweenTries)) {
        try {
            if (is_none(rendez::api().tensor_copy_device(engine, &meta, number, address, stream, &made))) {
                break;
            }
            return Room(rendez::TensorHandle(made), size);
        } catch (const rendez::Error &error) {
            bool is_full = error.reason() == "ARENA_FULL" || error.reason() == "DEVICE_FULL";
            if (!is_full || std::chrono::steady_clock::now() >= until) {
                throw;
            }
        }
    }
    Room room = Room::until(until, engine, meta, true);
    seen(room.data(), size, at::kCPU).copy_(seen(const_cast<void *>(storage.data()), size, device));
    return room;
}

at::DataPtr on_device(rendez_engine *engine, Bytes value, c10::Device device) {
    at::NoGradGuard no_grad;
    c10::DeviceGuard guard(device);
    size_t size = value.size();
    at::DataPtr made = c10::GetAllocator(device.type())->allocate(size);
    if (size == 0) {
        return made;
    }
    at::Tensor into = seen(made.get(), size, device);
    rendez::TensorHandle there;
    auto from = device;
    if (value.device() >= 0) {
        from = c10::Device(device.type(), static_cast<c10::DeviceIndex>(value.device()));
        there.reset(value.release());
    } else {
        rendez_tensor *copy = nullptr;
        auto number = static_cast<uint32_t>(device.index());
        if (is_none(rendez::api().tensor_to_device(engine, value.get(), number, &copy))) {
            into.copy_(seen(const_cast<char *>(value.data()), size, at::kCPU));
            return made;
        }
        there.reset(copy);
    }
    Bytes bytes(there.release());
    auto number = static_cast<uint32_t>(from.index());
    rendez::check(rendez::api().tensor_order(engine, bytes.get(), number, current_stream(from)));
    into.copy_(seen(reinterpret_cast<void *>(bytes.address()), size, from), true);
    // Between two devices torch queues the copy on the stream of the one that is read.
    rendez::check(rendez::api().tensor_free_after(engine, bytes.release(), number, current_stream(from)));
    return made;
}

std::vector<c10::Stream> own_streams(const std::vector<c10::Device> &devices) {
    std::vector<c10::Stream> streams;
    for (const c10::Device &device : devices) {
        if (!device.is_cpu()) {
            streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
        }
    }
    return streams;
}

std::vector<c10::Device> devices_of(const std::vector<at::Tensor> &tensors) {
    std::vector<c10::Device> devices;
    for (const at::Tensor &tensor : tensors) {
        auto device = tensor.device();
        if (!device.is_cpu() && std::find(devices.begin(), devices.end(), device) == devices.end()) {
            devices.push_back(device);
        }
    }
    return devices;
}

Behind::Behind(const std::vector<at::Tensor> &tensors) : devices_(devices_of(tensors)) {
    for (const c10::Device &device : devices_) {
        auto mark = std::make_shared<c10::Event>(device.type());
        mark->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
        marks_.push_back(std::move(mark));
    }
}

} // namespace rendez_torch
