// Threads for the callbacks of futures, which may wait for other operations.
//
// So none runs in a thread that operations need: that of a group, or the one in which the engine tells of values.
#pragma once

#include <functional>

namespace rendez_torch {

// Runs it soon in a thread of its own kind, behind no other that waits, and with this thread's modes.
void run_callbacks(std::function<void()> callbacks);

} // namespace rendez_torch
