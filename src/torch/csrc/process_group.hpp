// The process group backend `rendez`: torch's collectives, of CPU tensors where they lie and of CUDA tensors by way of
// the host.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "collectives.hpp"
#include "group.hpp"
#include "p2p.hpp"
#include "work.hpp"

namespace rendez_torch {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Milliseconds = std::chrono::milliseconds;

// Functions that newer versions of torch added say no `override`: they compile with older ones.
class ProcessGroupRendez : public c10d::Backend {
public:
    // `name` is what torch calls the backend: in profiles, and where programs ask for it.
    ProcessGroupRendez(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, Milliseconds timeout,
                       std::string name);
    ~ProcessGroupRendez() override;

    // Shuts all groups of this process down that live: what they sent has to arrive before the engine ends.
    static void shutdown_all();

    const std::string getBackendName() const override { return name_; }
    c10::intrusive_ptr<Options> getBackendOptions() override;
    void setTimeout(Milliseconds timeout) override { timeout_ = timeout; }
    uint64_t getSequenceNumberForGroup() override { return sequence_; }
    void setSequenceNumberForGroup() override {}
    void abort() override;
    void shutdown() override;
    bool supportsSplitting() const override { return true; }
    virtual c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store,
                                                    const std::vector<int> &ranks,
                                                    const c10::intrusive_ptr<Options> &options);

    WorkPtr send(Tensors &tensors, int to, int tag) override;
    WorkPtr recv(Tensors &tensors, int from, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;
    void startCoalescing() override;
    WorkPtr endCoalescing() override;

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override;
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    WorkPtr allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override;
    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override;
    WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &options) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &options) override;
    WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::GatherOptions &options) override;
    WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs, const c10d::ScatterOptions &options) override;
    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &options) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &options) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &options) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) override;
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_sizes,
                          std::vector<int64_t> &input_sizes, const c10d::AllToAllOptions &options) override;
    WorkPtr barrier(const c10d::BarrierOptions &options) override;
    void monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks) override;

private:
    // What a collective is called, in errors and in profiles, what goes with its values, and how it is begun.
    struct Call {
        c10d::OpType type;
        Stamp stamp;
        Milliseconds timeout;
        bool is_waited_for;

        const char *what() const { return name_of(static_cast<Kind>(stamp.kind)); }
    };
    template <class Given> Call call(c10d::OpType type, Stamp stamp, const Given &options) const;
    // Runs `body` in its turn. `inputs` and `outputs` are those of the profile and of the future.
    WorkPtr run(Call call, const Tensors &inputs, Tensors outputs, std::function<void(Collective &)> body);
    WorkPtr exchange(const Tensors &output_parts, const Tensors &input_parts, Tensors outputs, const Tensors &inputs,
                     const c10d::AllToAllOptions &options);
    WorkPtr receive(Tensors &tensors, std::vector<int> sources, int tag, c10d::OpType type);
    void monitor(const Until &until, bool wait_all_ranks);
    Milliseconds bound(Milliseconds timeout) const { return timeout.count() > 0 ? timeout : timeout_; }
    WorkPtr remember(WorkPtr work);
    const char *title(const char *what) const;

    // The log of DDP takes any group that goes by gloo's name for a ProcessGroupGloo, and reads from its options how
    // many threads it has: so these lie where that class has them, behind a store. torch's suites use that name.
    struct GlooOptions : Options {
        using Options::Options;
        std::vector<std::shared_ptr<void>> devices;
        int threads = 2;
    };
    const std::shared_ptr<void> store_of_gloo_;
    const c10::intrusive_ptr<GlooOptions> options_of_gloo_;

    const std::string name_;
    Milliseconds timeout_;
    std::shared_ptr<Group> group_;
    std::shared_ptr<Inbox> inbox_;
    std::shared_ptr<Queue> queue_;
    std::shared_ptr<CallbackQueue> callbacks_;
    std::atomic<uint64_t> sequence_{0}, barriers_{0};
    std::mutex coalescing_lock_;
    bool is_coalescing_ = false;
    std::vector<WorkPtr> coalesced_;
};

} // namespace rendez_torch
