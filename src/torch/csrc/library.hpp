// The rendez library as this extension uses it: the table of functions, and the one engine of this process.
//
// The table comes from Python, which has it from the wheel `rendez` (a capsule) or from `librendez_c.so`: nothing is
// linked, and the engine is the one that Python programs use too.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendez.hpp"

namespace rendez_torch {

// Takes the table of functions. Throws if it is older than this extension.
void use_table(const rendez_api *table);

// The type of a byte, as a tensor's element.
constexpr uint32_t kByte = 3;

// Bytes in the engine's memory or a peer's, to be read; a lease ends with it. On the host, or on a device.
class Bytes {
public:
    Bytes() = default;
    explicit Bytes(rendez_tensor *taken);
    const char *data() const { return reinterpret_cast<const char *>(address_); }
    size_t size() const { return size_; }
    // The number of the device that they lie on, or -1 for the host.
    int32_t device() const { return device_; }
    uint64_t address() const { return address_; }
    rendez_tensor *get() const { return handle_.get(); }
    rendez_tensor *release() { return handle_.release(); }

private:
    rendez::TensorHandle handle_;
    int32_t device_ = -1;
    uint64_t address_ = 0;
    size_t size_ = 0;
};

// How long after the engine had no room it is asked again.
constexpr std::chrono::milliseconds kBetweenTries{5};

// Memory of the engine that a peer of this machine reads in place: written here, then sent to any number of peers.
class Room {
public:
    Room(rendez_engine *engine, size_t size, bool is_paged = false);
    // Of bytes in that shape.
    Room(rendez_engine *engine, const rendez_meta &meta, bool is_paged = false);
    // Waits for it while the engine has none: what others have not read yet comes back.
    static Room until(std::chrono::steady_clock::time_point deadline, rendez_engine *engine, const rendez_meta &meta,
                      bool is_paged = false);
    // What lies in the engine's memory already, and is not written any more.
    Room(rendez::TensorHandle written, size_t size) : handle_(std::move(written)), size_(size) {}
    char *data() const { return data_; }
    size_t size() const { return size_; }
    // Another handle of it, to be sent. It is not written from the first one on.
    rendez_tensor *share() const;
    // The last handle.
    rendez_tensor *finish() { return handle_.release(); }

private:
    rendez::TensorHandle handle_;
    char *data_ = nullptr;
    size_t size_ = 0;
};

// A task, and which life of it: a receive of a key that names the life ends when that does, also if it begins later.
struct Task {
    std::string name;
    uint64_t life = 0;
};

// This process as a task: its engine, and how others find it.
class Node {
public:
    // Uses an engine that another owns; it has to outlive all that uses this.
    static void adopt(rendez_engine *engine);
    // The engine of this process, started with the first use.
    static std::shared_ptr<Node> get();
    // An engine that starts after this looks for devices.
    static void want_devices();
    // Ends the engine if it was started here: what was sent has so long to arrive.
    static void stop(uint64_t patience_ns);

    rendez_engine *engine() const { return engine_; }
    const Task &task() const { return task_; }
    // How much memory an arena of the engine may take, and how much may wait for receivers or be read by them.
    uint64_t arena_bytes() const;
    uint64_t parked_bytes() const;
    // What other processes need to reach this one, as one line of text to put into a store.
    std::string card() const;
    // Takes in another process's card; gives its task. Throws if there is no way to reach it.
    Task meet(const std::string &card) const;

    explicit Node(rendez_engine *borrowed);
    Node();
    ~Node();

private:
    uint64_t bound(std::initializer_list<const char *> gauges) const;
    void read_names();

    rendez_engine *engine_ = nullptr;
    bool is_owned_ = false;
    Task task_;
    std::string address_, tcp_address_, machine_;
};

// What an error says, without the frames of the stack that torch's own have in their `what`.
std::string words_of(const std::exception &error);

// Whether a step has ended in order, here or at the peer: its process ended, or needs it no more.
bool is_of_end(const rendez::Error &error);

// A key from one task to another.
rendez::Key key(const Task &from, const Task &to, const std::string &edge);

} // namespace rendez_torch
