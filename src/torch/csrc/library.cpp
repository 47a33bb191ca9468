// The rendez library as this extension uses it: see library.hpp.
#include "library.hpp"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <unistd.h>

#include <c10/util/Exception.h>

namespace {
std::atomic<const rendez_api *> given_table{nullptr};
std::mutex node_lock;
std::atomic<bool> wants_devices{false};
// That of the engine: a child of `fork` has none, and nothing to end.
std::atomic<pid_t> node_process{0};
// Never destroyed: groups may outlive the static objects of this library.
auto &node = *new std::shared_ptr<rendez_torch::Node>;

// Where abstract sockets of this process can be seen: the machine since its start, and the network namespace.
std::string machine_id() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    char space[64] = {};
    if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) {
        space[0] = 0;
    }
    return boot + "/" + space;
}

// True for all addresses of a machine: a process of another machine that dialled that would dial itself.
bool is_wildcard(const std::string &address) {
    return address.rfind("0.0.0.0:", 0) == 0 || address.rfind("[::]:", 0) == 0;
}

// A name that no other process has.
std::string own_task() {
    std::random_device dice;
    std::ostringstream name;
    name << "/job:torch_" << std::hex << dice() << dice() << "_" << std::dec << getpid() << "/task:0";
    return name.str();
}

std::string text(const char *text) { return text == nullptr ? std::string() : std::string(text); }
} // namespace

// rendez.hpp asks for the table by this name. Here it comes from Python, so nothing is linked.
extern "C" __attribute__((visibility("hidden"))) const rendez_api *rendez_get_api(uint32_t version) {
    const rendez_api *table = given_table.load();
    return table != nullptr && table->version == version ? table : nullptr;
}

namespace rendez_torch {

void use_table(const rendez_api *table) {
    if (table == nullptr || table->version != RENDEZ_API_VERSION || table->size < sizeof(rendez_api)) {
        throw std::runtime_error("the installed rendez is older than rendez-torch: install the newest of both");
    }
    given_table.store(table);
}

Bytes::Bytes(rendez_tensor *taken) : handle_(taken) {
    rendez::check(rendez::api().tensor_place(taken, &device_, &address_, &size_));
}

namespace {

size_t bytes_of(const rendez_meta &meta) {
    size_t bytes = 1;
    for (uint32_t i = 0; i < meta.rank; ++i) {
        bytes *= meta.dims[i];
    }
    return bytes;
}

} // namespace

Room::Room(rendez_engine *engine, size_t size, bool is_paged) : Room(engine, rendez::meta(kByte, {size}), is_paged) {}

Room::Room(rendez_engine *engine, const rendez_meta &meta, bool is_paged) : size_(bytes_of(meta)) {
    rendez_tensor *made = nullptr;
    void *data = nullptr;
    auto make = is_paged ? rendez::api().tensor_new_paged : rendez::api().tensor_new;
    rendez::check(make(engine, &meta, &made, &data));
    handle_.reset(made);
    data_ = static_cast<char *>(data);
}

Room Room::until(std::chrono::steady_clock::time_point deadline, rendez_engine *engine, const rendez_meta &meta,
                 bool is_paged) {
    for (;;) {
        try {
            return Room(engine, meta, is_paged);
        } catch (const rendez::Error &error) {
            if (error.reason() != "ARENA_FULL" || std::chrono::steady_clock::now() >= deadline) {
                throw;
            }
        }
        std::this_thread::sleep_for(kBetweenTries);
    }
}

rendez_tensor *Room::share() const {
    rendez_tensor *made = nullptr;
    rendez::check(rendez::api().tensor_clone(handle_.get(), &made));
    return made;
}

void Node::adopt(rendez_engine *engine) {
    std::lock_guard<std::mutex> guard(node_lock);
    if (node != nullptr) {
        throw std::runtime_error("rendez.torch has an engine already");
    }
    node = std::make_shared<Node>(engine);
    node_process = getpid();
}

std::shared_ptr<Node> Node::get() {
    std::lock_guard<std::mutex> guard(node_lock);
    if (node == nullptr) {
        node = std::make_shared<Node>();
        node_process = getpid();
    }
    return node;
}

void Node::want_devices() { wants_devices = true; }

void Node::stop(uint64_t patience_ns) {
    if (node_process != getpid()) {
        return;
    }
    std::shared_ptr<Node> last;
    {
        std::lock_guard<std::mutex> guard(node_lock);
        last = std::move(node);
        node = nullptr;
    }
    if (last != nullptr && last->is_owned_) {
        rendez::check(rendez::api().engine_shutdown(last->engine_, patience_ns));
    }
}

Node::Node(rendez_engine *borrowed) : engine_(borrowed) { read_names(); }

Node::Node() : is_owned_(true) {
    // One shard: a process of torch has one thread that waits for values, and that thread turns the shard itself.
    std::string settings = "task = \"" + own_task() + "\"\n";
    if (std::getenv("RENDEZ_SHARDS") == nullptr) {
        settings += "shards = 1\n";
    }
    if (std::getenv("RENDEZ_SHARE_CORES") == nullptr) {
        settings += "share_cores = true\n";
    }
    if (wants_devices && std::getenv("RENDEZ_DEVICES") == nullptr) {
        settings += "devices = \"auto\"\n";
    }
    rendez::check(rendez::api().engine_start_over(settings.c_str(), &engine_));
    read_names();
}

Node::~Node() {
    if (is_owned_) {
        rendez::api().engine_free(engine_);
    }
}

void Node::read_names() {
    task_ = {text(rendez::api().engine_task(engine_)), rendez::api().engine_incarnation(engine_)};
    address_ = text(rendez::api().engine_address(engine_));
    tcp_address_ = text(rendez::api().engine_tcp_address(engine_));
    machine_ = machine_id();
}

uint64_t Node::arena_bytes() const { return bound({"arena_used", "arena_headroom"}); }

uint64_t Node::parked_bytes() const { return bound({"parked", "lent", "parked_headroom"}); }

// No function tells it. It is the same for each shard, and the metrics say how far the first is from it.
uint64_t Node::bound(std::initializer_list<const char *> gauges) const {
    std::string page;
    auto take = [](void *into, const char *text, size_t size) { static_cast<std::string *>(into)->assign(text, size); };
    rendez::check(rendez::api().engine_metrics(engine_, take, &page));
    uint64_t bytes = 0;
    for (const char *gauge : gauges) {
        auto name = std::string("\nrendez_") + gauge + "_bytes{shard=\"0\"} ";
        auto found = page.find(name);
        if (found == std::string::npos) {
            throw std::runtime_error("the installed rendez does not tell how much memory it may take");
        }
        bytes += std::stoull(page.substr(found + name.size(), 20));
    }
    return bytes;
}

std::string Node::card() const {
    return task_.name + "\n" + address_ + "\n" + tcp_address_ + "\n" + machine_ + "\n" + std::to_string(task_.life) +
           "\n";
}

Task Node::meet(const std::string &card) const {
    std::istringstream lines(card);
    std::string task, address, tcp_address, machine;
    uint64_t life = 0;
    std::getline(lines, task) && std::getline(lines, address) && std::getline(lines, tcp_address) &&
        std::getline(lines, machine) && lines >> life;
    // At its TCP address a task of this machine sends on to the other one, unless the settings of either demand TCP.
    const std::string &way = machine == machine_ && tcp_address.empty() ? address : tcp_address;
    bool leads_here = machine != machine_ && is_wildcard(way);
    if (task.empty() || way.empty() || leads_here) {
        std::string why = leads_here ? "listens at " + way + ", which tells of no machine" : "has no TCP address";
        throw std::runtime_error("there is no way to reach " + (task.empty() ? "a process" : task) +
                                 ": it is on another machine and " + why +
                                 "; set RENDEZ_LISTEN=host:port, with the host by which others reach it "
                                 "(and RENDEZ_CLUSTER_SECRET_FILE), for every process");
    }
    if (task != task_.name) {
        rendez::check(rendez::api().engine_add_peer(engine_, task.c_str(), way.c_str()));
    }
    return {task, life};
}

std::string words_of(const std::exception &error) {
    auto *of_torch = dynamic_cast<const c10::Error *>(&error);
    return of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
}

bool is_of_end(const rendez::Error &error) { return error.reason() == "STEP_FINISHED"; }

rendez::Key key(const Task &from, const Task &to, const std::string &edge) {
    const char *device = "/device:CPU:0";
    std::ostringstream text;
    text << from.name << device << ';' << std::hex << from.life << ';' << to.name << device << ';' << edge << ";0:0";
    return rendez::Key::parse(text.str());
}

} // namespace rendez_torch
