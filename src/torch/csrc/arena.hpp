// torch's CPU tensors in the engine's memory: an allocator, and how what it gave is sent without a copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/ATen.h>

#include "library.hpp"

namespace rendez_torch {

// From so many bytes on a block owns its pages, so that its receiver maps them instead of copying them.
constexpr size_t kPaged = 128 << 10;

// What the allocator has done since it began.
struct ArenaCounts {
    // Blocks that live, and their bytes.
    uint64_t blocks, bytes;
    // Storages that were sent where they lay.
    uint64_t lent;
    // Allocations that the engine's memory, or torch's half of it, had no room for: torch's own allocator served them.
    uint64_t refused;
};

// Has torch allocate CPU memory of at least so many bytes from the engine's memory from now on. Gives what was set
// before; SIZE_MAX is off.
size_t use_arena(size_t minimum);

ArenaCounts arena_counts();

// A handle of a tensor's storage, if that is a whole block of the engine's memory; else none. No one may write to it
// from here on.
rendez::TensorHandle lend(const c10::Storage &storage);

// True if nobody but the one who asks, by this very handle, can reach the tensor's memory.
bool is_only_holder(const at::Tensor &tensor);

} // namespace rendez_torch
