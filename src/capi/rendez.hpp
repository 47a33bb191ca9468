/* rendez for C++17: what is used most of rendez.h, with destructors, and with exceptions for statuses. `get` gives the
 * handle for all else.
 *
 * Every handle moves and is not copied. A function that fails throws rendez::Error, which has the code, the reason and
 * the message; a destructor never throws.
 */
#ifndef RENDEZ_HPP
#define RENDEZ_HPP

#include "rendez.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace rendez {

/* The library's table. Throws std::runtime_error if the library is older than this header. */
inline const rendez_api &api() {
    static const rendez_api *const table = [] {
        const rendez_api *found = rendez_get_api(RENDEZ_API_VERSION);
        return found != nullptr && found->size >= sizeof(rendez_api) ? found : nullptr;
    }();
    if (table == nullptr) {
        throw std::runtime_error("the rendez library is older than rendez.hpp");
    }
    return *table;
}

/* Why something failed. */
class Error : public std::runtime_error {
public:
    /* Takes the status, which is freed. */
    explicit Error(rendez_status *status)
        : Error(std::unique_ptr<rendez_status, void (*)(rendez_status *)>(status, api().status_free)) {}

    /* The code, as gRPC numbers it. */
    uint32_t code() const noexcept { return code_; }
    /* The reason, a name that never changes. */
    const std::string &reason() const noexcept { return reason_; }

private:
    explicit Error(std::unique_ptr<rendez_status, void (*)(rendez_status *)> status)
        : std::runtime_error(api().status_message(status.get())), code_(api().status_code(status.get())),
          reason_(api().status_reason(status.get())) {}

    uint32_t code_;
    std::string reason_;
};

inline void check(rendez_status *status) {
    if (status != nullptr) {
        throw Error(status);
    }
}

using Patience = std::chrono::nanoseconds;
/* No bound of time. */
constexpr Patience forever = Patience::max();

namespace detail {

inline uint64_t bound(Patience patience) {
    return patience == forever ? RENDEZ_FOREVER : static_cast<uint64_t>(std::max(patience, Patience::zero()).count());
}

} // namespace detail

/* A value's type and shape. */
inline rendez_meta meta(uint32_t dtype, std::initializer_list<uint64_t> dims) {
    rendez_meta made = {};
    made.dtype = dtype;
    made.rank = static_cast<uint32_t>(dims.size());
    size_t at = 0;
    for (uint64_t dim : dims) {
        if (at < RENDEZ_RANK_MAX) {
            made.dims[at++] = dim;
        }
    }
    return made;
}

#define RENDEZ_HANDLE(Name, handle, free)                                                                              \
    struct Name##Free {                                                                                                \
        void operator()(handle *owned) const noexcept { api().free(owned); }                                           \
    };                                                                                                                 \
    using Name##Handle = std::unique_ptr<handle, Name##Free>;

RENDEZ_HANDLE(Engine, rendez_engine, engine_free)
RENDEZ_HANDLE(Key, rendez_key, key_free)
RENDEZ_HANDLE(Tensor, rendez_tensor, tensor_free)

#undef RENDEZ_HANDLE

/* What a value is sent and received by. */
class Key {
public:
    Key(const char *source, const char *destination, const char *edge) {
        rendez_key *made = nullptr;
        check(api().key_between(source, destination, edge, &made));
        handle_.reset(made);
    }
    /* Of its full text: source;incarnation;destination;edge;frame:iteration. */
    static Key parse(const std::string &text) {
        rendez_key *made = nullptr;
        check(api().key_parse(text.c_str(), &made));
        return Key(made);
    }
    const rendez_key *get() const noexcept { return handle_.get(); }

private:
    explicit Key(rendez_key *made) noexcept : handle_(made) {}

    KeyHandle handle_;
};

/* A tensor, to be read. */
class Tensor {
public:
    explicit Tensor(rendez_tensor *taken) noexcept : handle_(taken) {}

    /* Memory of the caller's, which is not copied; `release` is called once when nothing reads it, on any thread, also
     * if this throws. It must not throw, and is held to what rendez.h says of it. */
    static Tensor lend(const rendez_meta &meta, const void *data, size_t size, std::function<void()> release) {
        auto *kept = new std::function<void()>(std::move(release));
        rendez_tensor *made = nullptr;
        check(api().tensor_lend(&meta, data, size, &Tensor::release, kept, &made));
        return Tensor(made);
    }

    /* Another handle of the same memory. */
    Tensor clone() {
        rendez_tensor *made = nullptr;
        check(api().tensor_clone(handle_.get(), &made));
        return Tensor(made);
    }
    rendez_meta meta() const {
        rendez_meta found = {};
        check(api().tensor_meta(handle_.get(), &found));
        return found;
    }
    /* Its bytes, which live as long as the tensor. */
    std::pair<const void *, size_t> data() const {
        const void *data = nullptr;
        size_t size = 0;
        check(api().tensor_data(handle_.get(), &data, &size));
        return {data, size};
    }
    /* The handle, for what rendez.h has and this has not. */
    rendez_tensor *get() const noexcept { return handle_.get(); }
    /* The handle, which is the caller's from here on. */
    rendez_tensor *release() noexcept { return handle_.release(); }

private:
    static void release(void *context) noexcept {
        std::unique_ptr<std::function<void()>> kept(static_cast<std::function<void()> *>(context));
        if (*kept) {
            (*kept)();
        }
    }

    TensorHandle handle_;
};

/* A tensor in the engine's memory, and where it is written until it is sent. */
struct Room {
    Tensor tensor;
    void *data;
};

/* A value that was received. */
struct Value {
    Tensor tensor;
    uint32_t path;
    bool is_dead;
};

/* One task of a cluster. */
class Engine {
public:
    /* With these settings, a TOML text; NULL for the configuration file and the environment. */
    explicit Engine(const char *settings) {
        rendez_engine *made = nullptr;
        check(api().engine_start(settings, &made));
        handle_.reset(made);
    }

    /* Started over the configuration file and the environment, with a TOML text that overrides what they say. */
    static Engine over(const char *settings) {
        rendez_engine *made = nullptr;
        check(api().engine_start_over(settings, &made));
        return take(made);
    }
    /* An engine of which the handle is the wrapper's from here on. */
    static Engine take(rendez_engine *taken) noexcept {
        Engine engine;
        engine.handle_.reset(taken);
        return engine;
    }
    /* The handle, for what rendez.h has and this has not: callbacks, metrics, tensors of devices. */
    rendez_engine *get() const noexcept { return handle_.get(); }

    std::string task() const { return text(api().engine_task(handle_.get())); }
    std::string address() const { return text(api().engine_address(handle_.get())); }
    std::string tcp_address() const { return text(api().engine_tcp_address(handle_.get())); }
    /* Which life of its task this is, for keys that mean no other. */
    uint64_t incarnation() const noexcept { return api().engine_incarnation(handle_.get()); }
    void add_peer(const std::string &task, const std::string &address) {
        check(api().engine_add_peer(handle_.get(), task.c_str(), address.c_str()));
    }
    void shutdown(Patience patience) { check(api().engine_shutdown(handle_.get(), detail::bound(patience))); }

    Room tensor(const rendez_meta &meta) {
        rendez_tensor *made = nullptr;
        void *data = nullptr;
        check(api().tensor_new(handle_.get(), &meta, &made, &data));
        return {Tensor(made), data};
    }
    void send(uint64_t step, const Key &key, Tensor tensor, Patience patience = Patience::zero()) {
        check(api().send(handle_.get(), step, key.get(), tensor.release(), detail::bound(patience)));
    }
    Value recv(uint64_t step, const Key &key, Patience patience = forever) {
        rendez_value value = {};
        check(api().recv(handle_.get(), step, key.get(), detail::bound(patience), &value));
        return {Tensor(value.tensor), value.path, value.is_dead};
    }
    /* Copies the next value to `room`: how many bytes it has. `is_dead`, which may be NULL, says whether it says that no
     * value will come; `meta`, which may be NULL, its type and shape. Both are said also if `room` is too short. */
    size_t recv_into(uint64_t step, const Key &key, void *room, size_t room_size, Patience patience = forever,
                     bool *is_dead = nullptr, rendez_meta *meta = nullptr) {
        rendez_meta found = {};
        size_t size = 0;
        bool dead = false;
        rendez_status *status = api().recv_into_value(handle_.get(), step, key.get(), detail::bound(patience), room,
                                                      room_size, &found, &size, &dead);
        if (is_dead != nullptr) {
            *is_dead = dead;
        }
        if (meta != nullptr) {
            *meta = found;
        }
        check(status);
        return size;
    }
    void abort(uint64_t step, uint32_t code, const std::string &message) {
        check(api().step_abort(handle_.get(), step, code, message.c_str()));
    }
    void finish(uint64_t step) { check(api().step_finish(handle_.get(), step)); }

private:
    Engine() = default;

    static std::string text(const char *text) { return text == nullptr ? std::string() : std::string(text); }

    EngineHandle handle_;
};

} // namespace rendez

#endif /* RENDEZ_HPP */
