// Point to point: see p2p.hpp.
#include "p2p.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

namespace rendez_torch {

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

// A program may number its messages by tags. It looks again when there are twice as many as it could not forget.
void Inbox::forget() {
    if (lines_.size() < most_lines_) {
        return;
    }
    for (auto it = lines_.begin(); it != lines_.end();) {
        const Line &line = it->second;
        bool rests = line.waiters.empty() && line.kept.empty() && !line.is_under_way && line.lost == nullptr;
        it = rests ? lines_.erase(it) : std::next(it);
    }
    most_lines_ = std::max(kTags, 2 * lines_.size());
}

Inbox::Line &Inbox::line(int source, int tag) {
    Line &line = lines_[{source, tag}];
    if (line.key == nullptr) {
        line.key = std::make_unique<rendez::Key>(group_->tagged_key(source, tag));
    }
    return line;
}

void Inbox::receive(const std::vector<int> &sources, int tag, at::Tensor into, c10::intrusive_ptr<RendezWork> work,
                    std::function<void()> done) {
    auto waiter = std::make_shared<Waiter>(Waiter{sources, tag, std::move(into), work, std::move(done)});
    std::weak_ptr<Inbox> weak = weak_from_this();
    std::weak_ptr<Waiter> weak_waiter = waiter;
    work->on_timeout = [weak, weak_waiter](std::chrono::milliseconds bound) {
        auto inbox = weak.lock();
        auto waiter = weak_waiter.lock();
        if (inbox != nullptr && waiter != nullptr) {
            inbox->expire(waiter, bound);
        }
    };
    std::unique_lock<std::mutex> guard(lock_);
    forget();
    for (int source : sources) {
        Line &line = this->line(source, tag);
        if (!line.kept.empty()) {
            Bytes bytes = std::move(line.kept.front());
            line.kept.pop_front();
            guard.unlock();
            return fill(*waiter, source, bytes);
        }
    }
    for (int source : sources) {
        Line &line = this->line(source, tag);
        begin(source, tag, line);
        if (line.lost == nullptr) {
            line.waiters.push_back(waiter);
        }
    }
    bool is_hopeless = std::all_of(sources.begin(), sources.end(), [&](int s) { return line(s, tag).lost != nullptr; });
    if (is_hopeless) {
        std::exception_ptr error = line(sources.front(), tag).lost;
        waiter->is_over = true;
        guard.unlock();
        work->complete(error);
    }
}

void Inbox::begin(int source, int tag, Line &line) {
    if (line.is_under_way || line.lost != nullptr) {
        return;
    }
    line.is_under_way = true;
    std::weak_ptr<Inbox> weak = weak_from_this();
    try {
        begin_recv(group_->engine(), group_->step(), *line.key,
                   [weak, source, tag](rendez_status *status, rendez_tensor *value) {
                       if (auto inbox = weak.lock()) {
                           return inbox->arrived(source, tag, status, value);
                       }
                       rendez::api().status_free(status);
                       rendez::api().tensor_free(value);
                   });
    } catch (const rendez::Error &error) {
        line.is_under_way = false;
        if (!is_full(error) || !begin_later(source, tag, line)) {
            line.lost = std::current_exception();
        }
    } catch (...) {
        line.is_under_way = false;
        line.lost = std::current_exception();
    }
}

// False if there is no thread that waits.
bool Inbox::begin_later(int source, int tag, Line &line) {
    line.is_under_way = run_callbacks([weak = weak_from_this(), source, tag] {
        std::this_thread::sleep_for(kBetweenTries);
        auto inbox = weak.lock();
        if (inbox == nullptr) {
            return;
        }
        std::unique_lock<std::mutex> guard(inbox->lock_);
        Line &line = inbox->line(source, tag);
        line.is_under_way = false;
        if (!line.waiters.empty()) {
            inbox->begin(source, tag, line);
        }
        if (auto lost = line.lost) {
            guard.unlock();
            inbox->fail(source, line, lost);
        }
    });
    return line.is_under_way;
}

void Inbox::arrived(int source, int tag, rendez_status *status, rendez_tensor *value) {
    std::unique_lock<std::mutex> guard(lock_);
    Line &line = this->line(source, tag);
    line.is_under_way = false;
    if (status != nullptr) {
        auto error = group_->failure(status, source, Until::after(std::chrono::milliseconds(0), "recv"));
        line.lost = error;
        guard.unlock();
        return fail(source, line, error);
    }
    Bytes bytes(value);
    group_->count_received(source);
    if (line.waiters.empty()) {
        line.kept.push_back(std::move(bytes));
        return;
    }
    auto first = line.waiters.front();
    remove(first);
    if (!line.waiters.empty()) {
        begin(source, tag, line);
    }
    auto lost = line.lost;
    guard.unlock();
    fill(*first, source, bytes);
    if (lost != nullptr) {
        fail(source, line, lost);
    }
}

// No more values come from `source`: who waits for it alone, or only for ranks that are lost too, has nothing to wait
// for.
void Inbox::fail(int source, Line &line, const std::exception_ptr &error) {
    std::vector<std::shared_ptr<Waiter>> failed;
    {
        std::lock_guard<std::mutex> guard(lock_);
        for (auto &waiter : std::exchange(line.waiters, {})) {
            auto is_lost = [&](int s) { return s == source || this->line(s, waiter->tag).lost != nullptr; };
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
        auto &waiters = line(source, waiter->tag).waiters;
        auto found = std::find(waiters.begin(), waiters.end(), waiter);
        if (found != waiters.end()) {
            waiters.erase(found);
        }
    }
}

// A waiter that was taken to be filled has nobody else to end it: it ends here, whatever is thrown.
void Inbox::fill(Waiter &waiter, int source, const Bytes &bytes) {
    std::exception_ptr error;
    try {
        take_in(waiter, source, bytes);
    } catch (...) {
        error = std::current_exception();
    }
    waiter.work->complete(error, source);
}

void Inbox::take_in(Waiter &waiter, int source, const Bytes &bytes) {
    if (bytes.size() != waiter.into.nbytes()) {
        C10_THROW_ERROR(DistBackendError, c10::str("rendez: rank ", source, " sent ", bytes.size(),
                                                   " bytes where recv has room for ", waiter.into.nbytes()));
    }
    if (bytes.size() != 0) {
        std::memcpy(waiter.into.data_ptr(), bytes.data(), bytes.size());
    }
    if (waiter.done) {
        waiter.done();
    }
}

} // namespace rendez_torch
