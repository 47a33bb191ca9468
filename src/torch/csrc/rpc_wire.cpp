// A message of torch's RPC as values of rendez: see rpc_wire.hpp.
#include "rpc_wire.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include "arena.hpp"
#include "devices.hpp"

namespace rendez_torch {
namespace {

// Storages up to so many bytes travel in the head.
constexpr uint64_t kInline = 4096;
// No message has more storages, or tensors: a head that says so is malformed.
constexpr uint64_t kListed = 1 << 20;

// How a head begins; what storages there are follows, then the device of each tensor, the payload, the pickle of the
// tensors, and inline storages.
struct Head {
    int64_t id;
    int32_t type;
    uint32_t storages;
    uint64_t tensors;
    uint64_t payload;
    uint64_t pickle;
};

struct Travelling {
    uint64_t size;
    // The receiver's device that it goes to, or -1 for its host.
    int32_t device;
    // 1 if it is in the head, and 0 if it follows.
    uint32_t is_inline;
};

struct Parsed {
    Head head;
    std::vector<Travelling> storages;
    // Where each tensor goes, as with a storage. One without elements has no storage that says it.
    std::vector<int32_t> places;
    const char *payload, *pickle, *inlined;
};

Parsed parse(const Bytes &bytes) {
    Parsed parsed = {};
    size_t left = bytes.size();
    const char *at = bytes.data();
    auto take = [&](uint64_t size) {
        TORCH_CHECK(size <= left, "rendez: a malformed message of RPC: it ends before it should");
        const char *here = at;
        at += size;
        left -= size;
        return here;
    };
    std::memcpy(&parsed.head, take(sizeof(Head)), sizeof(Head));
    auto list = [&](auto &into, uint64_t count, const char *what) {
        TORCH_CHECK(count <= kListed, "rendez: a malformed message of RPC: ", count, what);
        size_t size = count * sizeof(into[0]);
        const char *here = take(size);
        into.resize(count);
        if (size != 0) {
            std::memcpy(into.data(), here, size);
        }
    };
    list(parsed.storages, parsed.head.storages, " storages");
    list(parsed.places, parsed.head.tensors, " tensors");
    parsed.payload = take(parsed.head.payload);
    parsed.pickle = take(parsed.head.pickle);
    parsed.inlined = at;
    for (const Travelling &storage : parsed.storages) {
        TORCH_CHECK(storage.device >= -1 && storage.device < std::numeric_limits<c10::DeviceIndex>::max(),
                    "rendez: a malformed message of RPC: a storage for device ", storage.device);
        if (storage.is_inline != 0) {
            TORCH_CHECK(storage.device < 0 || storage.size == 0,
                        "rendez: a malformed message of RPC: a storage for a device in its head");
            take(storage.size);
        }
    }
    return parsed;
}

// A copy of bytes as torch's own memory.
at::DataPtr copy_of(const char *data, size_t size) {
    at::DataPtr made = c10::GetAllocator(c10::DeviceType::CPU)->allocate(size);
    if (size != 0) {
        std::memcpy(made.get(), data, size);
    }
    return made;
}

// A private mapping of what a worker wrote, which keeps that worker from using its memory again.
struct Mapped {
    Mapped(std::shared_ptr<Kept> of, size_t size) : kept(std::move(of)), bytes(size) { kept->bytes += bytes; }
    Mapped(const Mapped &) = delete;
    Mapped &operator=(const Mapped &) = delete;
    ~Mapped() {
        rendez::api().mapping_free(mapping);
        kept->bytes -= bytes;
    }
    std::shared_ptr<Kept> kept;
    const size_t bytes;
    rendez_mapping *mapping = nullptr;
};

// Memory that torch may write to: mapped while little of that worker's is kept, or a copy.
at::DataPtr writable(Bytes bytes, const std::shared_ptr<Kept> &kept) {
    if (bytes.size() >= kPaged && kept->bytes + bytes.size() <= kept->most) {
        auto mapped = std::make_unique<Mapped>(kept, bytes.size());
        void *data = nullptr;
        size_t size = 0;
        auto *status = rendez::api().tensor_map(bytes.get(), &mapped->mapping, &data, &size);
        if (status == nullptr) {
            auto end = [](void *mapped) { delete static_cast<Mapped *>(mapped); };
            return {data, mapped.release(), end, at::Device(at::kCPU)};
        }
        // It came from another machine, so it was copied already.
        rendez::api().status_free(status);
    }
    return copy_of(bytes.data(), bytes.size());
}

Room room_of(std::chrono::steady_clock::time_point until, rendez_engine *engine, const void *data, size_t size) {
    Room room = Room::until(until, engine, rendez::meta(kByte, {size}), size >= kPaged);
    std::memcpy(room.data(), data, size);
    return room;
}

// Where what lies on a device of ours goes.
int32_t place_of(c10::Device device, const Destination &to) {
    auto found = to.devices.find(device);
    if (found == to.devices.end()) {
        TORCH_CHECK(device.is_cpu(), to.missing, " for device ", device, " but received a tensor on that device.");
        return -1;
    }
    return found->second.is_cpu() ? -1 : static_cast<int32_t>(found->second.index());
}

c10::Device device_of(const Travelling &storage) {
    return storage.device < 0 ? c10::Device(c10::kCPU)
                              : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(storage.device));
}

// A value's bytes where this process reads them.
Bytes on_host(rendez_engine *engine, Bytes value) {
    if (value.device() < 0) {
        return value;
    }
    rendez_tensor *copy = nullptr;
    rendez::check(rendez::api().tensor_to_host(engine, value.get(), &copy));
    return Bytes(copy);
}

} // namespace

Outgoing pack(rendez_engine *engine, const rpc::Message &message, int64_t id, const Destination &to,
              std::chrono::steady_clock::time_point until) {
    std::string pickle;
    // What nobody else can write to any more is sent as it lies.
    std::unordered_set<const void *> only;
    for (const at::Tensor &tensor : message.tensors()) {
        if (is_only_holder(tensor)) {
            only.insert(tensor.storage().data());
        }
    }
    auto tensors = rpc::cloneSparseTensors(message.tensors()).vec();
    torch::jit::Pickler pickler([&](const char *data, size_t size) { pickle.append(data, size); }, nullptr, nullptr,
                                nullptr, nullptr, false);
    pickler.protocol();
    pickler.pushIValue(tensors);
    pickler.stop();
    const auto &storages = pickler.tensorData();
    TORCH_CHECK(std::max(storages.size(), message.tensors().size()) <= kListed, "rendez: a message of RPC has at most ",
                kListed, " tensors, and this one has ", message.tensors().size());
    std::vector<Travelling> table;
    uint64_t inlined = 0;
    std::vector<int32_t> places;
    for (const at::Tensor &tensor : message.tensors()) {
        places.push_back(place_of(tensor.device(), to));
    }
    for (const at::Tensor &tensor : storages) {
        uint64_t size = tensor.storage().nbytes();
        int32_t place = place_of(tensor.device(), to);
        bool is_inline = size == 0 || (size <= kInline && tensor.device().is_cpu() && place < 0);
        table.push_back({size, place, is_inline});
        inlined += is_inline ? size : 0;
    }
    Head head{id, static_cast<int32_t>(message.type()), static_cast<uint32_t>(table.size()), places.size(),
              message.payload().size(), pickle.size()};
    Outgoing out;
    size_t lists = table.size() * sizeof(Travelling) + places.size() * sizeof(int32_t);
    size_t length = sizeof head + lists + head.payload + head.pickle + inlined;
    Room first = Room::until(until, engine, rendez::meta(kByte, {length}));
    char *at = first.data();
    auto put = [&](const void *data, size_t size) {
        if (size != 0) {
            std::memcpy(at, data, size);
            at += size;
        }
    };
    put(&head, sizeof head);
    put(table.data(), table.size() * sizeof(Travelling));
    put(places.data(), places.size() * sizeof(int32_t));
    put(message.payload().data(), head.payload);
    put(pickle.data(), head.pickle);
    out.values.push_back(std::move(first));
    for (size_t i = 0; i < table.size(); ++i) {
        const void *data = storages[i].storage().data();
        if (table[i].is_inline != 0) {
            put(data, table[i].size);
        } else if (!storages[i].device().is_cpu()) {
            out.values.push_back(value_of(engine, storages[i], until));
        } else {
            auto lent = only.count(data) != 0 ? lend(storages[i].storage()) : rendez::TensorHandle();
            uint64_t size = table[i].size;
            out.values.push_back(lent ? Room(std::move(lent), size) : room_of(until, engine, data, size));
        }
    }
    return out;
}

size_t values_behind(const Bytes &head) {
    auto storages = parse(head).storages;
    return static_cast<size_t>(
        std::count_if(storages.begin(), storages.end(), [](const Travelling &storage) { return !storage.is_inline; }));
}

std::pair<int64_t, bool> named_by(const Bytes &bytes) {
    Head head = parse(bytes).head;
    return {head.id, (head.type & rpc::MessageTypeFlags::REQUEST_TYPE) != 0};
}

// The pickle says by itself how much memory a tensor has.
static void check_inside(const at::Tensor &tensor, const std::unordered_map<const void *, uint64_t> &sizes) {
    if (tensor.layout() == at::kSparse) {
        check_inside(tensor._indices(), sizes);
        return check_inside(tensor._values(), sizes);
    }
    if (tensor.layout() == at::kSparseCsr) {
        check_inside(tensor.crow_indices(), sizes);
        check_inside(tensor.col_indices(), sizes);
        return check_inside(tensor.values(), sizes);
    }
    if (tensor.has_storage() && tensor.storage().nbytes() != 0) {
        auto found = sizes.find(tensor.storage().data());
        TORCH_CHECK(found != sizes.end() && tensor.storage().nbytes() <= found->second,
                    "rendez: a malformed message of RPC: a tensor is larger than its storage");
    }
}

Incoming unpack(rendez_engine *engine, const Bytes &bytes, std::vector<Bytes> values,
                const std::shared_ptr<Kept> &kept) {
    Parsed parsed = parse(bytes);
    std::vector<c10::Device> devices;
    for (const Travelling &storage : parsed.storages) {
        auto device = device_of(storage);
        if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
            devices.push_back(device);
        }
    }
    Incoming incoming{nullptr, own_streams(devices)};
    c10::MultiStreamGuard guard(incoming.streams);
    std::vector<at::DataPtr> data;
    std::unordered_map<const void *, uint64_t> sizes;
    const char *inlined = parsed.inlined;
    size_t next = 0;
    for (const Travelling &storage : parsed.storages) {
        if (storage.is_inline != 0 && storage.device < 0) {
            data.push_back(copy_of(inlined, storage.size));
            sizes[data.back().get()] = storage.size;
            inlined += storage.size;
            continue;
        }
        // Only an empty one for a device is in the head.
        Bytes value;
        if (storage.is_inline == 0) {
            TORCH_CHECK(next >= values.size() || values[next].size() != 0, "its sender could not send ", storage.size,
                        " bytes of it");
            TORCH_CHECK(next < values.size() && values[next].size() == storage.size,
                        "rendez: a malformed message of RPC: a storage of ", storage.size, " bytes is missing");
            value = std::move(values[next++]);
        }
        data.push_back(storage.device < 0 ? writable(on_host(engine, std::move(value)), kept)
                                          : on_device(engine, std::move(value), device_of(storage)));
        sizes[data.back().get()] = storage.size;
    }
    const char *at = parsed.pickle;
    const char *end = parsed.pickle + parsed.head.pickle;
    auto read = [&](char *into, size_t wanted) -> size_t {
        size_t size = std::min(wanted, static_cast<size_t>(end - at));
        std::memcpy(into, at, size);
        at += size;
        return size;
    };
    auto record = [&](const std::string &name) -> at::DataPtr { return std::move(data.at(std::stoul(name))); };
    // A tensor is where its storage is, wherever it was.
    torch::jit::Unpickler unpickler(read, nullptr, nullptr, record, {}, true);
    std::vector<at::Tensor> tensors;
    for (auto &&tensor : unpickler.parse_ivalue().toList()) {
        tensors.push_back(static_cast<c10::IValue>(tensor).toTensor());
        check_inside(tensors.back(), sizes);
    }
    for (size_t i = 0; i < std::min(tensors.size(), parsed.places.size()); ++i) {
        if (tensors[i].numel() == 0 && parsed.places[i] >= 0 && tensors[i].device().is_cpu()) {
            tensors[i] = tensors[i].to(device_of({0, parsed.places[i], 1}));
        }
    }
    std::vector<char> payload(parsed.payload, parsed.payload + parsed.head.payload);
    incoming.message = c10::make_intrusive<rpc::Message>(std::move(payload), std::move(tensors),
                                                         static_cast<rpc::MessageType>(parsed.head.type),
                                                         parsed.head.id);
    return incoming;
}

} // namespace rendez_torch
