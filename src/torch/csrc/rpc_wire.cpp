// A message of torch's RPC as values of rendez: see rpc_wire.hpp.
#include "rpc_wire.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include "arena.hpp"

namespace rendez_torch {
namespace {

// Storages up to so many bytes travel in the head.
constexpr uint64_t kInline = 4096;
// No message has so many storages: a head that says so is malformed.
constexpr uint32_t kStoragesMax = 1 << 20;

// How a head begins; sizes of storages follow, then the payload, the pickle of the tensors, and inline storages.
struct Head {
    int64_t id;
    int32_t type;
    uint32_t storages;
    uint64_t payload;
    uint64_t pickle;
};

struct Parsed {
    Head head;
    std::vector<uint64_t> sizes;
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
    TORCH_CHECK(parsed.head.storages <= kStoragesMax, "rendez: a malformed message of RPC: ", parsed.head.storages,
                " storages");
    size_t table = parsed.head.storages * sizeof(uint64_t);
    const char *sizes = take(table);
    parsed.sizes.resize(parsed.head.storages);
    if (table != 0) {
        std::memcpy(parsed.sizes.data(), sizes, table);
    }
    parsed.payload = take(parsed.head.payload);
    parsed.pickle = take(parsed.head.pickle);
    parsed.inlined = at;
    for (uint64_t size : parsed.sizes) {
        if (size <= kInline) {
            take(size);
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

// Memory that torch may write to: a private mapping of what its sender wrote, or a copy where there is none.
at::DataPtr writable(Bytes bytes) {
    if (bytes.size() >= kPaged) {
        rendez_mapping *mapping = nullptr;
        void *data = nullptr;
        size_t size = 0;
        auto *status = rendez::api().tensor_map(bytes.get(), &mapping, &data, &size);
        if (status == nullptr) {
            auto end = [](void *mapping) { rendez::api().mapping_free(static_cast<rendez_mapping *>(mapping)); };
            return {data, mapping, end, at::Device(at::kCPU)};
        }
        // It came from another machine, so it was copied already.
        rendez::api().status_free(status);
    }
    return copy_of(bytes.data(), bytes.size());
}

Room room_of(rendez_engine *engine, const void *data, size_t size) {
    Room room(engine, size, size >= kPaged);
    std::memcpy(room.data(), data, size);
    return room;
}

} // namespace

Outgoing pack(rendez_engine *engine, const rpc::Message &message, int64_t id) {
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
    std::vector<uint64_t> sizes;
    uint64_t inlined = 0;
    for (const at::Tensor &tensor : storages) {
        TORCH_CHECK(tensor.device().is_cpu(), "rendez: RPC moves CPU tensors, and this one is on ", tensor.device(),
                    ": move it by .cpu(); device maps are unavailable with this backend");
        sizes.push_back(tensor.storage().nbytes());
        inlined += sizes.back() <= kInline ? sizes.back() : 0;
    }
    Head head{id, static_cast<int32_t>(message.type()), static_cast<uint32_t>(sizes.size()), message.payload().size(),
              pickle.size()};
    Outgoing out;
    Room first(engine, sizeof head + sizes.size() * sizeof(uint64_t) + head.payload + head.pickle + inlined);
    char *at = first.data();
    auto put = [&](const void *data, size_t size) {
        if (size != 0) {
            std::memcpy(at, data, size);
            at += size;
        }
    };
    put(&head, sizeof head);
    put(sizes.data(), sizes.size() * sizeof(uint64_t));
    put(message.payload().data(), head.payload);
    put(pickle.data(), head.pickle);
    out.values.push_back(std::move(first));
    for (size_t i = 0; i < sizes.size(); ++i) {
        const void *data = storages[i].storage().data();
        if (sizes[i] <= kInline) {
            put(data, sizes[i]);
        } else {
            auto lent = only.count(data) != 0 ? lend(storages[i].storage()) : rendez::TensorHandle();
            out.values.push_back(lent ? Room(std::move(lent), sizes[i]) : room_of(engine, data, sizes[i]));
        }
    }
    return out;
}

size_t values_behind(const Bytes &head) {
    auto sizes = parse(head).sizes;
    return static_cast<size_t>(std::count_if(sizes.begin(), sizes.end(), [](uint64_t size) { return size > kInline; }));
}

c10::intrusive_ptr<rpc::Message> unpack(const Bytes &bytes, std::vector<Bytes> values) {
    Parsed parsed = parse(bytes);
    std::vector<at::DataPtr> data;
    const char *inlined = parsed.inlined;
    size_t next = 0;
    for (uint64_t size : parsed.sizes) {
        if (size <= kInline) {
            data.push_back(copy_of(inlined, size));
            inlined += size;
        } else {
            TORCH_CHECK(next < values.size() && values[next].size() == size,
                        "rendez: a malformed message of RPC: a storage of ", size, " bytes is missing");
            data.push_back(writable(std::move(values[next++])));
        }
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
    torch::jit::Unpickler unpickler(read, nullptr, nullptr, record, {});
    std::vector<at::Tensor> tensors;
    for (auto &&tensor : unpickler.parse_ivalue().toList()) {
        tensors.push_back(static_cast<c10::IValue>(tensor).toTensor());
    }
    std::vector<char> payload(parsed.payload, parsed.payload + parsed.head.payload);
    return c10::make_intrusive<rpc::Message>(std::move(payload), std::move(tensors),
                                             static_cast<rpc::MessageType>(parsed.head.type), parsed.head.id);
}

} // namespace rendez_torch
