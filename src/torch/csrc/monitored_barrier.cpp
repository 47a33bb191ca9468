// The barrier that names who is missing: everyone tells rank 0, which lets all go when all are there.
#include "process_group.hpp"

namespace rendez_torch {
namespace {

// The tag of monitored barriers; torch's own are not negative.
constexpr int kBarrierTag = -1;

} // namespace

void ProcessGroupRendez::monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks) {
    queue_->drain(timeout_);
    // A bound of 0 is one that has passed.
    monitor(options.timeout == c10d::kUnsetTimeout ? timeout_ : options.timeout, wait_all_ranks);
}

// Everyone tells rank 0, which names who did not, and then lets the others go.
void ProcessGroupRendez::monitor(Milliseconds timeout, bool wait_all_ranks) {
    auto until = Until::after(timeout, "monitored_barrier");
    auto tell = [&](int rank, uint64_t number) {
        Room room = group_->room(sizeof number);
        std::memcpy(room.data(), &number, sizeof number);
        group_->send_tagged(rank, kBarrierTag, room.finish(), until);
    };
    auto hear = [&](int rank) {
        uint64_t number = 0;
        Bytes bytes = group_->recv_tagged(rank, kBarrierTag, until);
        TORCH_CHECK(bytes.size() == sizeof number, "rendez: rank ", rank, " said something that is no barrier");
        std::memcpy(&number, bytes.data(), sizeof number);
        return number;
    };
    if (rank_ != 0) {
        // Each rank numbers its own: an answer to a barrier that failed here is passed over.
        uint64_t number = ++barriers_;
        try {
            tell(0, number);
            while (hear(0) < number) {
            }
        } catch (const std::exception &error) {
            TORCH_CHECK(false, "Rank ", rank_,
                        " successfully reached monitoredBarrier, but received errors while waiting for "
                        "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n",
                        error.what());
        }
        return;
    }
    std::vector<int> missing;
    std::vector<uint64_t> numbers(static_cast<size_t>(size_));
    for (int rank = 1; rank < size_; ++rank) {
        if (until.patience() == 0 && missing.empty()) {
            TORCH_CHECK(false, "Rank ", rank_, " timed out in monitoredBarrier after ", timeout.count(), " ms.");
        }
        try {
            numbers[static_cast<size_t>(rank)] = hear(rank);
        } catch (const std::exception &error) {
            missing.push_back(rank);
            TORCH_CHECK(wait_all_ranks, "[Rank 0]: Rank ", rank, " failed to pass monitoredBarrier in ",
                        timeout.count(), " ms\n Original exception: \n", error.what());
        }
    }
    TORCH_CHECK(missing.empty(), "[Rank 0]: Ranks ", c10::Join(", ", missing), " failed to pass monitoredBarrier in ",
                timeout.count(), " ms");
    for (int rank = 1; rank < size_; ++rank) {
        tell(rank, numbers[static_cast<size_t>(rank)]);
    }
}

} // namespace rendez_torch
