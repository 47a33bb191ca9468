// Point to point: see p2p.hpp.
#include "p2p.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

namespace rendez_torch {
namespace {

// How long a receive waits to be begun by who waits for it.
constexpr std::chrono::milliseconds kSoon{1};
// How long one that brings its receive does not see that another thread has ended it.
constexpr std::chrono::nanoseconds kLook = std::chrono::seconds(1);

// What is said of a receive: its bound is that of who waits for it.
const Until kRecv{{}, {}, "recv"};

} // namespace

// Nobody else has it any more, so no value comes to what still waits in it.
Inbox::~Inbox() {
    auto error = std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                                               "rendez: the group of this recv has ended"));
    for (auto &[from, line] : lines_) {
        for (auto &waiter : line.waiters) {
            if (!std::exchange(waiter->is_over, true)) {
                waiter->work->complete(error);
            }
        }
    }
}

namespace {

// What a message has of the tensor, without its tag.
size_t size_of(const Bytes &bytes) { return bytes.size() - sizeof(int); }

int tag_of(const Bytes &bytes) {
    int tag = 0;
    std::memcpy(&tag, bytes.data() + size_of(bytes), sizeof tag);
    return tag;
}

} // namespace

Inbox::Line &Inbox::line(int source, const std::string &edge) {
    Line &line = lines_[{source, edge}];
    if (line.key == nullptr) {
        line.source = source;
        line.edge = edge;
        line.key = std::make_unique<rendez::Key>(group_->message_key(source, edge));
    }
    return line;
}

void Inbox::receive(const std::vector<int> &sources, int tag, at::Tensor into, c10::intrusive_ptr<RendezWork> work,
                    std::function<void()> done) {
    auto edge = message_edge(tag);
    auto waiter = std::make_shared<Waiter>(Waiter{sources, tag, edge, std::move(into), work, std::move(done)});
    std::weak_ptr<Inbox> weak = weak_from_this();
    std::weak_ptr<Waiter> weak_waiter = waiter;
    work->on_timeout = [weak, weak_waiter](std::chrono::milliseconds bound) {
        auto inbox = weak.lock();
        auto waiter = weak_waiter.lock();
        if (inbox != nullptr && waiter != nullptr) {
            inbox->expire(waiter, bound);
        }
    };
    // A thread asks for one value at a time, so who waits for any rank is told.
    waiter->is_told = sources.size() > 1;
    if (!waiter->is_told) {
        work->on_wait = [weak, weak_waiter](Deadline until) {
            auto inbox = weak.lock();
            auto waiter = weak_waiter.lock();
            if (inbox != nullptr && waiter != nullptr) {
                inbox->wait(waiter, until);
            }
        };
    }
    std::unique_lock<std::mutex> guard(lock_);
    for (int source : sources) {
        auto &kept = line(source, edge).kept;
        auto found = std::find_if(kept.begin(), kept.end(), [tag](auto &one) { return one.first == tag; });
        if (found != kept.end()) {
            Bytes bytes = std::move(found->second);
            kept.erase(found);
            waiter->is_over = true;
            guard.unlock();
            return fill(waiter, source, std::move(bytes));
        }
    }
    for (int source : sources) {
        Line &line = this->line(source, edge);
        if (line.lost == nullptr) {
            line.waiters.push_back(waiter);
            go_on(line);
        }
    }
    std::vector<Line *> lost;
    for (int source : sources) {
        if (Line &line = this->line(source, edge); line.lost != nullptr) {
            lost.push_back(&line);
        }
    }
    bool is_over = lost.size() == sources.size();
    if (is_over) {
        remove(waiter);
    }
    guard.unlock();
    if (is_over) {
        work->complete(lost.front()->lost);
    }
    for (Line *line : lost) {
        fail(*line, line->lost);
    }
}

// The caller waits for the work. What it is brought may be another's, and another may be waiting for its own.
void Inbox::wait(const std::shared_ptr<Waiter> &waiter, Deadline until) {
    std::unique_lock<std::mutex> guard(lock_);
    if (waiter->is_over) {
        return;
    }
    Line &line = this->line(waiter->sources.front(), waiter->edge);
    Until bound = kRecv;
    bound.deadline = until;
    bool is_told = bound.patience() == 0;
    while (!is_told && !waiter->is_over && line.lost == nullptr) {
        uint64_t patience = std::min<uint64_t>(bound.patience(), kLook.count());
        is_told = line.is_under_way;
        if (is_told || patience == 0) {
            break;
        }
        line.is_under_way = true;
        guard.unlock();
        rendez_value value = {};
        auto *status = rendez::api().recv(group_->engine(), group_->step(), line.key->get(), patience, &value);
        // All else is the outcome of a value, which no other receive gets.
        std::string reason = status == nullptr ? "" : rendez::api().status_reason(status);
        bool is_none = reason == "DEADLINE" || is_full(reason);
        is_none ? rendez::api().status_free(status) : arrived(line, status, value.tensor);
        guard.lock();
        if (is_none) {
            line.is_under_way = false;
            is_told = is_full(reason);
        }
    }
    waiter->is_told = waiter->is_told || is_told;
    go_on(line);
    if (auto lost = line.lost) {
        guard.unlock();
        fail(line, lost);
    }
}

void Inbox::go_on(Line &line) {
    auto is_told = [](auto &waiter) { return waiter->is_told; };
    if (line.waiters.empty() || line.is_under_way) {
        return;
    }
    if (std::any_of(line.waiters.begin(), line.waiters.end(), is_told)) {
        return begin(line);
    }
    if (line.is_soon) {
        return;
    }
    if (soon_.empty() && !run_callbacks([weak = weak_from_this()] {
            std::this_thread::sleep_for(kSoon);
            if (auto inbox = weak.lock()) {
                inbox->begin_soon();
            }
        })) {
        return begin(line);
    }
    line.is_soon = true;
    soon_.push_back(&line);
}

void Inbox::begin_soon() {
    std::vector<Line *> lost;
    std::unique_lock<std::mutex> guard(lock_);
    for (Line *line : std::exchange(soon_, {})) {
        line->is_soon = false;
        if (!line->waiters.empty()) {
            begin(*line);
        }
        if (line->lost != nullptr) {
            lost.push_back(line);
        }
    }
    guard.unlock();
    for (Line *line : lost) {
        fail(*line, line->lost);
    }
}

void Inbox::begin(Line &line) {
    if (line.is_under_way || line.lost != nullptr) {
        return;
    }
    line.is_under_way = true;
    std::weak_ptr<Inbox> weak = weak_from_this();
    try {
        begin_recv(group_->engine(), group_->step(), *line.key,
                   [weak, &line](rendez_status *status, rendez_tensor *value) {
                       if (auto inbox = weak.lock()) {
                           return inbox->arrived(line, status, value);
                       }
                       rendez::api().status_free(status);
                       rendez::api().tensor_free(value);
                   });
    } catch (const rendez::Error &error) {
        line.is_under_way = false;
        if (!is_full(error.reason()) || !begin_later(line)) {
            line.lost = group_->failure(error, line.source, kRecv);
        }
    } catch (...) {
        line.is_under_way = false;
        line.lost = std::current_exception();
    }
}

// False if there is no thread that waits.
bool Inbox::begin_later(Line &line) {
    line.is_under_way = run_callbacks([weak = weak_from_this(), &line] {
        std::this_thread::sleep_for(kBetweenTries);
        auto inbox = weak.lock();
        if (inbox == nullptr) {
            return;
        }
        std::unique_lock<std::mutex> guard(inbox->lock_);
        line.is_under_way = false;
        if (!line.waiters.empty()) {
            inbox->begin(line);
        }
        if (auto lost = line.lost) {
            guard.unlock();
            inbox->fail(line, lost);
        }
    });
    return line.is_under_way;
}

void Inbox::arrived(Line &line, rendez_status *status, rendez_tensor *value) {
    std::unique_lock<std::mutex> guard(lock_);
    const int source = line.source;
    line.is_under_way = false;
    if (status != nullptr) {
        auto error = group_->failure(rendez::Error(status), source, kRecv);
        line.lost = error;
        guard.unlock();
        return fail(line, error);
    }
    Bytes bytes(value);
    group_->count_received(source);
    if (bytes.size() < sizeof(int)) {
        auto error = line.lost = std::make_exception_ptr(
            c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                  c10::str("rendez: rank ", source, " sent something that is no message")));
        guard.unlock();
        return fail(line, error);
    }
    int tag = tag_of(bytes);
    auto is_for = [tag](const std::shared_ptr<Waiter> &waiter) { return waiter->tag == tag; };
    auto found = std::find_if(line.waiters.begin(), line.waiters.end(), is_for);
    std::shared_ptr<Waiter> first;
    if (found == line.waiters.end()) {
        line.kept.emplace_back(tag, std::move(bytes));
    } else {
        first = *found;
        remove(first);
    }
    go_on(line);
    auto lost = line.lost;
    guard.unlock();
    if (first != nullptr) {
        fill(first, source, std::move(bytes));
    }
    if (lost != nullptr) {
        fail(line, lost);
    }
}

// No more values come from `source`: who waits for it alone, or only for ranks that are lost too, has nothing to wait
// for.
void Inbox::fail(Line &line, const std::exception_ptr &error) {
    std::vector<std::shared_ptr<Waiter>> failed;
    {
        std::lock_guard<std::mutex> guard(lock_);
        for (auto &waiter : std::exchange(line.waiters, {})) {
            auto is_lost = [&](int s) { return s == line.source || this->line(s, waiter->edge).lost != nullptr; };
            if (std::all_of(waiter->sources.begin(), waiter->sources.end(), is_lost)) {
                remove(waiter);
                failed.push_back(waiter);
            }
        }
    }
    for (auto &waiter : failed) {
        waiter->work->complete(error);
    }
}

void Inbox::expire(const std::shared_ptr<Waiter> &waiter, std::chrono::milliseconds bound) {
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (waiter->is_over) {
            return;
        }
        remove(waiter);
    }
    auto message = c10::str("rendez: Timed out waiting ", bound.count(), "ms for recv operation to complete from rank ",
                            waiter->sources.front(), waiter->sources.size() > 1 ? " or any other" : "");
    waiter->work->complete(
        std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message)));
}

// It is over: a line of a rank that sends nothing more would keep its tensor.
void Inbox::remove(const std::shared_ptr<Waiter> &waiter) {
    waiter->is_over = true;
    for (int source : waiter->sources) {
        auto &waiters = line(source, waiter->edge).waiters;
        auto found = std::find(waiters.begin(), waiters.end(), waiter);
        if (found != waiters.end()) {
            waiters.erase(found);
        }
    }
}

// A waiter that was taken to be filled has nobody else to end it: it ends here, whatever is thrown.
void Inbox::fill(const std::shared_ptr<Waiter> &waiter, int source, Bytes bytes) {
    auto end = [waiter, source, bytes = std::make_shared<Bytes>(std::move(bytes))] {
        std::exception_ptr error;
        try {
            take_in(*waiter, source, *bytes);
        } catch (...) {
            error = std::current_exception();
        }
        waiter->work->complete(error, source);
    };
    // A copy to a device comes behind what its stream has queued, which may wait for other values: and this may be the
    // thread that tells of all.
    if (!waiter->done || !run_callbacks(end)) {
        end();
    }
}

void Inbox::take_in(Waiter &waiter, int source, const Bytes &bytes) {
    size_t size = size_of(bytes);
    if (size != waiter.into.nbytes()) {
        C10_THROW_ERROR(DistBackendError, c10::str("rendez: rank ", source, " sent ", size,
                                                   " bytes where recv has room for ", waiter.into.nbytes()));
    }
    if (size != 0) {
        std::memcpy(waiter.into.data_ptr(), bytes.data(), size);
    }
    if (waiter.done) {
        waiter.done();
    }
}

} // namespace rendez_torch
