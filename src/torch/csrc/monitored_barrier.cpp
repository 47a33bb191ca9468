// The barrier that names who is missing: everyone tells rank 0, which lets all go when all are there.
#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "process_group.hpp"

namespace rendez_torch {
namespace {

// What monitored barriers say has an edge of its own.
constexpr const char *kBarrier = "barrier";

// How long rank 0 waits at least to hear of a rank that arrived whether it is still there.
constexpr Milliseconds kToConfirm{500};

// What is said of a barrier. A rank numbers its own, and rank 0 its rounds, which need not be as many: a rank may have
// been too late for some. A round of 0 is that of an arrival, which knows of none.
struct Said {
    uint64_t number = 0, round = 0, is_over = 0;
};

} // namespace

void ProcessGroupRendez::monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks) {
    // A bound of 0 is one that has passed.
    auto timeout = options.timeout == c10d::kUnsetTimeout ? timeout_ : options.timeout;
    auto until = Until::after(timeout, "monitored_barrier");
    // A collective before it may hang for want of the very rank that is missing: half of the time is left to find that.
    queue_->drain(until.timeout / 2);
    monitor(until, wait_all_ranks);
}

// Everyone tells rank 0 that it has arrived. Rank 0 asks who did whether they are there, and lets all go once all have
// said so: an arrival alone may be that of a barrier that its rank gave up since. One that gives up after it has said so
// and before it is let go has failed alone; no bound of time can tell that to all.
void ProcessGroupRendez::monitor(const Until &until, bool wait_all_ranks) {
    auto tell = [&](int rank, const Said &said, const Until &bound) {
        Room room = group_->room(sizeof said, bound);
        std::memcpy(room.data(), &said, sizeof said);
        group_->send_message(rank, kBarrier, room, bound);
    };
    auto hear = [&](int rank, const Until &bound) {
        Said said;
        Bytes bytes = group_->recv_message(rank, kBarrier, bound);
        TORCH_CHECK(bytes.size() == sizeof said, "rendez: rank ", rank, " said something that is no barrier");
        std::memcpy(&said, bytes.data(), sizeof said);
        return said;
    };
    uint64_t round = ++barriers_;
    if (rank_ != 0) {
        try {
            Said said{round, 0, 0};
            do {
                // What rank 0 says of an earlier barrier of this rank is passed over.
                if (said.number == round) {
                    tell(0, said, until);
                }
                said = hear(0, until);
            } while (said.number != round || said.is_over == 0);
        } catch (const std::exception &error) {
            TORCH_CHECK(false, "Rank ", rank_,
                        " successfully reached monitoredBarrier, but received errors while waiting for "
                        "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n",
                        words_of(error));
        }
        return;
    }
    TORCH_CHECK(size_ == 1 || until.patience() > 0, "Rank ", rank_, " timed out in monitoredBarrier after ",
                until.timeout.count(), " ms.");
    std::vector<uint64_t> numbers(static_cast<size_t>(size_));
    std::vector<std::string> failures(static_cast<size_t>(size_));
    auto confirm = [&](int rank) {
        auto at = static_cast<size_t>(rank);
        try {
            auto bound = until;
            Said said = hear(rank, bound);
            while (said.round != round) {
                bound.deadline = std::max(until.deadline, std::min(Clock::now(), until.deadline) + kToConfirm);
                tell(rank, {said.number, round, 0}, bound);
                said = hear(rank, bound);
            }
            numbers[at] = said.number;
        } catch (const std::exception &error) {
            failures[at] = words_of(error);
            if (failures[at].empty()) {
                failures[at] = "unknown";
            }
        }
    };
    // One thread for each rank, so that none is taken for missing behind one that is.
    std::vector<std::thread> threads;
    for (int rank = 1; rank < size_; ++rank) {
        try {
            threads.emplace_back(confirm, rank);
        } catch (const std::system_error &) {
            confirm(rank);
        }
    }
    for (auto &thread : threads) {
        thread.join();
    }
    std::vector<int> missing;
    for (int rank = 1; rank < size_; ++rank) {
        if (!failures[static_cast<size_t>(rank)].empty()) {
            missing.push_back(rank);
        }
    }
    if (!missing.empty() && !wait_all_ranks) {
        TORCH_CHECK(false, "[Rank 0]: Rank ", missing.front(), " failed to pass monitoredBarrier in ",
                    until.timeout.count(), " ms\n Original exception: \n",
                    failures[static_cast<size_t>(missing.front())]);
    }
    TORCH_CHECK(missing.empty(), "[Rank 0]: Ranks ", c10::Join(", ", missing), " failed to pass monitoredBarrier in ",
                until.timeout.count(), " ms");
    auto bound = until;
    bound.deadline = std::max(until.deadline, Clock::now() + kToConfirm);
    for (int rank = 1; rank < size_; ++rank) {
        tell(rank, {numbers[static_cast<size_t>(rank)], round, 1}, bound);
    }
}

} // namespace rendez_torch
