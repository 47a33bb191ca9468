// torch's CPU tensors in the engine's memory: see arena.hpp.
#include "arena.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <unistd.h>

namespace rendez_torch {
namespace {

// A block that torch has: the engine's handle of it, and its size.
struct Block {
    rendez_tensor *handle;
    size_t size;
};

// The state of the allocator. Never destroyed: tensors may outlive the static objects of this library.
struct State {
    std::mutex lock;
    std::unordered_map<void *, Block> blocks;
    // What they have together, and the most of it: half of the engine's memory, as messages want room that comes back.
    uint64_t bytes = 0, most = 0;
    std::atomic<uint64_t> lent{0}, refused{0};
    std::atomic<size_t> minimum{SIZE_MAX};
    c10::Allocator *before = nullptr;
    // Kept, so that the engine is there as long as its memory.
    std::shared_ptr<Node> node;
    // A child of `fork` has no engine: it takes nothing from its memory, and gives nothing back.
    pid_t process = 0;
};

State &state() {
    static auto &made = *new State;
    return made;
}

void release(void *data) {
    State &all = state();
    rendez_tensor *handle = nullptr;
    {
        std::lock_guard<std::mutex> guard(all.lock);
        auto found = all.blocks.find(data);
        if (found != all.blocks.end()) {
            handle = found->second.handle;
            all.bytes -= found->second.size;
            all.blocks.erase(found);
        }
    }
    if (handle == nullptr) {
        all.before->raw_deleter()(data);
    } else if (all.process == getpid()) {
        rendez::api().tensor_free(handle);
    }
}

class ArenaAllocator final : public c10::Allocator {
public:
    at::DataPtr allocate(size_t size) override {
        State &all = state();
        void *data = nullptr;
        if (size >= all.minimum.load(std::memory_order_relaxed)) {
            data = take(all, size);
        }
        if (data == nullptr) {
            data = all.before->raw_allocate(size);
        }
        return {data, data, &release, at::Device(at::kCPU)};
    }
    // One for all that it gives: its context is the memory itself, as torch's own allocator has it.
    at::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void *into, const void *from, size_t count) const override { default_copy_data(into, from, count); }

private:
    static void *take(State &all, size_t size) {
        if (all.process != getpid()) {
            return nullptr;
        }
        rendez_meta meta = rendez::meta(kByte, {size});
        rendez_tensor *made = nullptr;
        void *data = nullptr;
        auto make = size >= kPaged ? rendez::api().tensor_new_paged : rendez::api().tensor_new;
        std::unique_lock<std::mutex> guard(all.lock);
        bool has_room = size <= all.most - std::min(all.most, all.bytes);
        all.bytes += size;
        guard.unlock();
        auto *status = has_room ? make(all.node->engine(), &meta, &made, &data) : nullptr;
        guard.lock();
        if (made == nullptr) {
            all.bytes -= size;
            rendez::api().status_free(status);
            all.refused.fetch_add(1, std::memory_order_relaxed);
            return nullptr;
        }
        all.blocks.emplace(data, Block{made, size});
        return data;
    }
};

} // namespace

size_t use_arena(size_t minimum) {
    State &all = state();
    static std::once_flag once;
    // What throws is done again by the next call, so it comes before what must be done once.
    std::call_once(once, [&] {
        all.before = c10::GetAllocator(c10::DeviceType::CPU);
        TORCH_CHECK(all.before->raw_deleter() != nullptr,
                    "rendez: another allocator of CPU memory is in use, which use_arena() cannot stand before");
        all.node = Node::get();
        all.most = all.node->arena_bytes() / 2;
        all.process = getpid();
        // A child frees tensors that it has from here: the lock is not another thread's when it begins.
        pthread_atfork([] { state().lock.lock(); }, [] { state().lock.unlock(); }, [] { state().lock.unlock(); });
        c10::SetAllocator(c10::DeviceType::CPU, new ArenaAllocator, UINT8_MAX);
    });
    TORCH_CHECK(all.process == getpid(), "rendez: use_arena() was called before this process was forked: call it in "
                                         "the child alone");
    return all.minimum.exchange(minimum);
}

ArenaCounts arena_counts() {
    State &all = state();
    std::lock_guard<std::mutex> guard(all.lock);
    return {all.blocks.size(), all.bytes, all.lent.load(), all.refused.load()};
}

rendez::TensorHandle lend(const c10::Storage &storage) {
    State &all = state();
    rendez::TensorHandle lent;
    std::lock_guard<std::mutex> guard(all.lock);
    auto found = all.blocks.find(const_cast<void *>(storage.data()));
    if (found != all.blocks.end() && found->second.size == storage.nbytes() && all.process == getpid()) {
        rendez_tensor *made = nullptr;
        rendez::check(rendez::api().tensor_clone(found->second.handle, &made));
        lent.reset(made);
        all.lent.fetch_add(1, std::memory_order_relaxed);
    }
    return lent;
}

// Torch's Python object of a tensor holds it, and is held by it: where no one else holds that object, it does not
// count.
template <class Slot> bool is_held_by_python_alone(const Slot &slot) {
    if constexpr (requires { slot.has_unique_reference(); }) {
        return slot.has_unique_reference();
    } else {
        return false;
    }
}

bool is_only_holder(const at::Tensor &tensor) {
    if (!tensor.has_storage() || tensor.storage().use_count() != 1) {
        return false;
    }
    size_t count = tensor.use_count();
    return count == 1 || (count == 2 && is_held_by_python_alone(*tensor.unsafeGetTensorImpl()->pyobj_slot()));
}

} // namespace rendez_torch
