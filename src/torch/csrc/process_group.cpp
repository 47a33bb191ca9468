// The process group backend `rendez`: see process_group.hpp.
#include "process_group.hpp"

#include <algorithm>
#include <set>
#include <type_traits>

#include <ATen/MemoryOverlap.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>

#include "coalesced.hpp"
#include "devices.hpp"
#include "gil.hpp"
#include "tensors.hpp"

namespace rendez_torch {
namespace {

// How long a group that is shut down, or all at the end of the process, waits for its members to take what was sent to
// them.
constexpr Milliseconds kLeaving{10000};

// Not every version of torch says whether an operation is asynchronous.
template <class T, class = void> struct AsyncOp {
    static bool of(const T &) { return true; }
};
template <class T> struct AsyncOp<T, std::void_t<decltype(std::declval<T>().asyncOp)>> {
    static bool of(const T &options) { return options.asyncOp; }
};

void check_one(const Tensors &tensors, const char *what) {
    TORCH_CHECK(tensors.size() == 1, "rendez: ", what, " takes one tensor, and was given ", tensors.size());
}

// Throws unless they are dense tensors that can be written to. A failure to write the results, which comes once others
// have theirs, closes the group.
void check_written(const Tensors &tensors, const char *what) {
    check_dense(tensors, what);
    for (const at::Tensor &tensor : tensors) {
        TORCH_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "rendez: ", what,
                    " cannot write to a tensor whose elements share memory, as those of `expand` do: pass a `clone()` "
                    "of it");
    }
}

void check_root(int64_t root, int size, const char *what) {
    TORCH_CHECK(root >= 0 && root < size, "rendez: ", what, ": rank ", root, " is not one of ", size);
}

// The others are this extension's own.
void check_tag(int tag, const char *what) {
    TORCH_CHECK(tag >= 0, "rendez: ", what, ": the tag ", tag, " is negative");
}

// What a rank gives itself.
void check_same(const at::Tensor &input, const at::Tensor &output, const char *what) {
    TORCH_CHECK(input.nbytes() == output.nbytes() && input.scalar_type() == output.scalar_type(), "rendez: ", what,
                ": this rank's own input, ", input.sizes(), " of ", input.scalar_type(), ", and its output, ",
                output.sizes(), " of ", output.scalar_type(), ", differ in size or type");
}

Tensors flat(const std::vector<Tensors> &lists) {
    Tensors all;
    for (const Tensors &list : lists) {
        all.insert(all.end(), list.begin(), list.end());
    }
    return all;
}

// Equal pieces of a tensor, one for each rank.
std::vector<Piece> equal_pieces(const at::Tensor &contiguous, int ranks) {
    size_t length = contiguous.nbytes() / static_cast<size_t>(ranks);
    std::vector<Piece> pieces;
    for (int rank = 0; rank < ranks; ++rank) {
        pieces.push_back({static_cast<char *>(contiguous.data_ptr()) + length * static_cast<size_t>(rank), length,
                          contiguous.scalar_type()});
    }
    return pieces;
}

void check_multiple(const at::Tensor &large, const at::Tensor &small, int ranks, const char *what) {
    TORCH_CHECK(large.scalar_type() == small.scalar_type(), "rendez: ", what, " was given tensors of two types, ",
                large.scalar_type(), " and ", small.scalar_type());
    TORCH_CHECK(large.numel() == small.numel() * ranks, "rendez: ", what, " wants ", small.numel(),
                " elements for each of ", ranks, " ranks, and was given ", large.numel());
}

// What ends a group, of all groups of this process. torch holds a group where nothing of Python does: no wrapper says
// which of them live; and a weak pointer to a group itself would keep its destructor from running.
struct Ends {
    int rank;
    std::weak_ptr<Group> group;
    std::weak_ptr<Queue> queue;
    std::weak_ptr<CallbackQueue> callbacks;
};

struct Groups {
    std::mutex lock;
    std::vector<Ends> all;
};

Groups &groups() {
    // Never destroyed: groups may be made, and end, as long as the process has threads.
    static auto &groups = *new Groups;
    return groups;
}

Milliseconds left_until(Deadline until) {
    return std::max(Milliseconds(0), std::chrono::duration_cast<Milliseconds>(until - Clock::now()));
}

void leave_group(int rank, Group &group, Queue &queue, Deadline until) {
    if (group.is_forked()) {
        return;
    }
    if (!queue.drain(left_until(until))) {
        group.abort(c10::str("rendez: rank ", rank, " shut the group down while a collective was under way"));
    }
    group.leave(left_until(until));
}

// Callbacks may begin operations, and those have callbacks.
void shut_down(int rank, Group &group, Queue &queue, CallbackQueue &callbacks, Deadline until) {
    if (group.is_forked()) {
        return;
    }
    WithoutGil released;
    auto drain = [&](auto &what) { return what.drain(left_until(until)); };
    while (drain(queue) && drain(callbacks) && !queue.drain(Milliseconds(0))) {
    }
    if (!callbacks.drain(Milliseconds(0))) {
        TORCH_WARN("rendez: rank ", rank, " shut the group down while a callback of a future ran");
    }
    leave_group(rank, group, queue, until);
}

} // namespace

ProcessGroupRendez::ProcessGroupRendez(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                       Milliseconds timeout, std::string name)
    : Backend(rank, size), options_of_gloo_(c10::make_intrusive<GlooOptions>(name, timeout)), name_(std::move(name)),
      timeout_(timeout), group_(Group::meet(store, rank, size)), inbox_(std::make_shared<Inbox>(group_)),
      queue_(std::make_shared<Queue>()), callbacks_(std::make_shared<CallbackQueue>()) {
    init();
    auto &known = groups();
    std::lock_guard<std::mutex> guard(known.lock);
    known.all.erase(std::remove_if(known.all.begin(), known.all.end(), [](auto &ends) { return ends.queue.expired(); }),
                    known.all.end());
    known.all.push_back({rank_, group_, queue_, callbacks_});
}

ProcessGroupRendez::~ProcessGroupRendez() {
    try {
        leave_group(rank_, *group_, *queue_, Clock::now() + kLeaving);
    } catch (const std::exception &error) {
        TORCH_WARN("rendez: a group did not shut down well: ", words_of(error));
    }
}

void ProcessGroupRendez::shutdown_all() {
    std::vector<Ends> all;
    {
        auto &known = groups();
        std::lock_guard<std::mutex> guard(known.lock);
        all = known.all;
    }
    auto until = Clock::now() + kLeaving;
    for (auto &ends : all) {
        auto group = ends.group.lock();
        auto queue = ends.queue.lock();
        auto callbacks = ends.callbacks.lock();
        if (group == nullptr || queue == nullptr || callbacks == nullptr) {
            continue;
        }
        try {
            shut_down(ends.rank, *group, *queue, *callbacks, until);
        } catch (const std::exception &error) {
            TORCH_WARN("rendez: a group did not shut down well: ", words_of(error));
        }
    }
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupRendez::getBackendOptions() {
    return c10::make_intrusive<Options>(name_, timeout_);
}

void ProcessGroupRendez::abort() { group_->abort(c10::str("rendez: rank ", rank_, " aborted the group")); }

void ProcessGroupRendez::shutdown() { shut_down(rank_, *group_, *queue_, *callbacks_, Clock::now() + kLeaving); }

c10::intrusive_ptr<c10d::Backend> ProcessGroupRendez::split(const c10::intrusive_ptr<c10d::Store> &store,
                                                            const std::vector<int> &ranks,
                                                            const c10::intrusive_ptr<Options> &options) {
    auto own = std::find(ranks.begin(), ranks.end(), rank_);
    if (own == ranks.end()) {
        return nullptr;
    }
    return c10::make_intrusive<ProcessGroupRendez>(store, static_cast<int>(own - ranks.begin()),
                                                   static_cast<int>(ranks.size()),
                                                   options == nullptr ? timeout_ : options->timeout, name_);
}

const char *ProcessGroupRendez::title(const char *what) const {
    // A work keeps the pointer only, for as long as it likes.
    static std::mutex lock;
    static auto &titles = *new std::set<std::string>;
    std::lock_guard<std::mutex> guard(lock);
    return titles.insert(name_ + ":" + what).first->c_str();
}

template <class Given>
ProcessGroupRendez::Call ProcessGroupRendez::call(c10d::OpType type, Stamp stamp, const Given &options) const {
    return {type, stamp, bound(options.timeout), !AsyncOp<Given>::of(options)};
}

WorkPtr ProcessGroupRendez::remember(WorkPtr work) {
    std::lock_guard<std::mutex> guard(coalescing_lock_);
    if (is_coalescing_) {
        coalesced_.push_back(work);
    }
    return work;
}

WorkPtr ProcessGroupRendez::run(Call call, const Tensors &inputs, Tensors outputs,
                                std::function<void(Collective &)> body) {
    group_->check_usable();
    ++sequence_;
    auto work = c10::make_intrusive<RendezWork>(rank_, call.type, title(call.what()), inputs, std::move(outputs),
                                                Milliseconds(0), callbacks_);
    // Tensors of GPUs are copied to the host and back, behind what the caller's streams have queued.
    Tensors all = inputs;
    all.insert(all.end(), work->outputs().begin(), work->outputs().end());
    auto job = [group = group_, work, call, body = std::move(body), behind = Behind(all)] {
        try {
            at::NoGradGuard no_grad;
            // One before it in the queue may have failed since.
            group->check_usable();
            Collective collective(*group, Until::after(call.timeout, call.what()), call.stamp);
            behind.run([&] { body(collective); });
            work->complete();
        } catch (const c10::DistNetworkError &error) {
            group->abort(words_of(error), true);
            work->complete(std::current_exception());
        } catch (const std::exception &error) {
            group->mark_failed(words_of(error));
            work->complete(std::current_exception());
        }
    };
    CallbackQueue::Waits waits;
    queue_->run(call.is_waited_for, std::move(job));
    return remember(work);
}

// What was sent is copied, so the tensor may be written to at once and the work is done when this returns.
WorkPtr ProcessGroupRendez::send(Tensors &tensors, int to, int tag) {
    check_one(tensors, "send");
    check_dense(tensors, "send");
    check_root(to, size_, "send");
    check_tag(tag, "send");
    TORCH_CHECK(to != rank_, "rendez: send to this rank itself");
    group_->check_usable();
    auto work = c10::make_intrusive<RendezWork>(rank_, c10d::OpType::SEND, title("send"), tensors, tensors,
                                                Milliseconds(0), callbacks_);
    at::Tensor own = dense(tensors[0]);
    CallbackQueue::Waits waits;
    try {
        auto until = Until::after(timeout_, "send");
        Room room = group_->room(own.nbytes() + sizeof tag, until);
        if (own.nbytes() != 0) {
            std::memcpy(room.data(), own.data_ptr(), own.nbytes());
        }
        std::memcpy(room.data() + own.nbytes(), &tag, sizeof tag);
        group_->send_message(to, message_edge(tag), room, until);
        work->complete();
    } catch (...) {
        work->complete(std::current_exception());
    }
    return remember(work);
}

WorkPtr ProcessGroupRendez::receive(Tensors &tensors, std::vector<int> sources, int tag, c10d::OpType type) {
    check_one(tensors, "recv");
    check_written(tensors, "recv");
    check_tag(tag, "recv");
    group_->check_usable();
    auto work = c10::make_intrusive<RendezWork>(
        rank_, type, title(type == c10d::OpType::RECV ? "recv" : "recvAnySource"), tensors, tensors, timeout_,
        callbacks_);
    at::Tensor given = tensors[0];
    at::Tensor into = is_dense(given) ? given : host_like(given);
    std::function<void()> done;
    if (!into.is_same(given)) {
        // It runs in another thread, and in this one's mode of inference.
        done = [given, into, behind = Behind(tensors), state = at::ThreadLocalState()]() mutable {
            at::ThreadLocalStateGuard state_guard(state);
            at::NoGradGuard no_grad;
            behind.run([&] { given.copy_(into); });
        };
    }
    inbox_->receive(sources, tag, into, work, std::move(done));
    return remember(work);
}

WorkPtr ProcessGroupRendez::recv(Tensors &tensors, int from, int tag) {
    check_root(from, size_, "recv");
    TORCH_CHECK(from != rank_, "rendez: recv from this rank itself");
    return receive(tensors, {from}, tag, c10d::OpType::RECV);
}

WorkPtr ProcessGroupRendez::recvAnysource(Tensors &tensors, int tag) {
    std::vector<int> sources;
    for (int rank = 0; rank < size_; ++rank) {
        if (rank != rank_) {
            sources.push_back(rank);
        }
    }
    TORCH_CHECK(!sources.empty(), "rendez: a group of one has no other rank to receive from");
    return receive(tensors, sources, tag, c10d::OpType::RECVANYSOURCE);
}

void ProcessGroupRendez::startCoalescing() {
    std::lock_guard<std::mutex> guard(coalescing_lock_);
    is_coalescing_ = true;
    coalesced_.clear();
}

WorkPtr ProcessGroupRendez::endCoalescing() {
    std::lock_guard<std::mutex> guard(coalescing_lock_);
    is_coalescing_ = false;
    return c10::make_intrusive<CoalescedWork>(rank_, std::move(coalesced_));
}

WorkPtr ProcessGroupRendez::broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) {
    check_one(tensors, "broadcast");
    check_root(options.rootRank, size_, "broadcast");
    bool is_root = rank_ == options.rootRank;
    is_root ? check_dense(tensors, "broadcast") : check_written(tensors, "broadcast");
    auto body = [tensors, is_root, root = static_cast<int>(options.rootRank)](Collective &collective) {
        Outputs outputs(tensors, is_root);
        collective.broadcast(piece_of(outputs.tensors()[0]), root);
        if (!is_root) {
            outputs.finish();
        }
    };
    Stamp stamp(Kind::broadcast, options.rootRank);
    return run(call(c10d::OpType::BROADCAST, stamp, options), tensors, tensors, body);
}

WorkPtr ProcessGroupRendez::allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) {
    check_one(tensors, "all_reduce");
    if (tensors[0].layout() == at::kSparse) {
        return allreduce_sparse(tensors, options);
    }
    check_written(tensors, "all_reduce");
    Reduction how = reduction_of(options.reduceOp, tensors[0]);
    auto body = [tensors, how](Collective &collective) {
        Outputs outputs(tensors, true);
        collective.all_reduce(elements_of(outputs.tensors()[0], how));
        outputs.finish();
    };
    return run(call(c10d::OpType::ALLREDUCE, Stamp(Kind::all_reduce, how), options), tensors, tensors, body);
}

// Everyone gets everyone's indices and values, and adds them up.
WorkPtr ProcessGroupRendez::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) {
    check_one(tensors, "all_reduce");
    TORCH_CHECK(tensors[0].layout() == at::kSparse && tensors[0].device().is_cpu(), "rendez: sparse CPU tensors");
    TORCH_CHECK(options.reduceOp.op_ == c10d::ReduceOp::SUM,
                "rendez sums sparse tensors, and has no other reduction of them");
    auto body = [tensor = tensors[0], size = size_, rank = rank_](Collective &collective) mutable {
        at::Tensor own = tensor.coalesce();
        at::Tensor indices = dense(own.indices()), values = dense(own.values());
        at::Tensor counts = at::zeros({size}, at::kLong);
        at::Tensor count = at::full({1}, own._nnz(), at::kLong);
        collective.spread(piece_of(count), equal_pieces(counts, size));
        Tensors all_indices, all_values;
        for (int from = 0; from < size; ++from) {
            int64_t there = counts[from].item<int64_t>();
            auto shape = values.sizes().vec();
            shape[0] = there;
            all_indices.push_back(at::empty({indices.size(0), there}, indices.options()));
            all_values.push_back(at::empty(shape, values.options()));
        }
        collective.spread(piece_of(indices), pieces_of(all_indices));
        collective.spread(piece_of(values), pieces_of(all_values));
        at::Tensor sum = at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), tensor.sizes());
        tensor.copy_(sum.coalesce());
    };
    return run(call(c10d::OpType::_ALLREDUCE_SPARSE, Stamp(Kind::sparse_all_reduce), options), {}, tensors, body);
}

WorkPtr ProcessGroupRendez::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) {
    TORCH_CHECK(!tensors.empty(), "rendez: all_reduce_coalesced of no tensors");
    check_written(tensors, "all_reduce_coalesced");
    for (const at::Tensor &tensor : tensors) {
        TORCH_CHECK(tensor.scalar_type() == tensors[0].scalar_type(), "tensors must all have the same type");
    }
    Reduction how = reduction_of(options.reduceOp, tensors[0]);
    auto body = [tensors, how](Collective &collective) {
        Tensors rows;
        for (const at::Tensor &tensor : tensors) {
            rows.push_back(tensor.reshape({-1}));
        }
        at::Tensor all = dense(at::cat(rows));
        collective.all_reduce(elements_of(all, how));
        int64_t at = 0;
        for (const at::Tensor &tensor : tensors) {
            tensor.copy_(all.narrow(0, at, tensor.numel()).view(tensor.sizes()));
            at += tensor.numel();
        }
    };
    return run(call(c10d::OpType::ALLREDUCE_COALESCED, Stamp(Kind::all_reduce, how), options), tensors, tensors, body);
}

WorkPtr ProcessGroupRendez::reduce(Tensors &tensors, const c10d::ReduceOptions &options) {
    check_one(tensors, "reduce");
    check_root(options.rootRank, size_, "reduce");
    rank_ == options.rootRank ? check_written(tensors, "reduce") : check_dense(tensors, "reduce");
    Reduction how = reduction_of(options.reduceOp, tensors[0]);
    auto body = [tensors, how, rank = rank_, root = static_cast<int>(options.rootRank)](Collective &collective) {
        // Only the root's tensor changes.
        at::Tensor own = rank == root ? tensors[0] : tensors[0].clone(at::MemoryFormat::Contiguous);
        Outputs outputs({own}, true);
        collective.reduce(elements_of(outputs.tensors()[0], how), root);
        outputs.finish();
    };
    return run(call(c10d::OpType::REDUCE, Stamp(Kind::reduce, how, options.rootRank), options), tensors, tensors, body);
}

WorkPtr ProcessGroupRendez::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                                      const c10d::AllgatherOptions &options) {
    check_one(inputs, "all_gather");
    check_dense(inputs, "all_gather");
    TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_),
                "rendez: all_gather wants one output for each of ", size_, " ranks");
    check_written(outputs[0], "all_gather");
    check_same(inputs[0], outputs[0][static_cast<size_t>(rank_)], "all_gather");
    auto body = [inputs, into = outputs[0]](Collective &collective) {
        Outputs made(into);
        collective.spread(piece_of(dense(inputs[0])), pieces_of(made.tensors()));
        made.finish();
    };
    return run(call(c10d::OpType::ALLGATHER, Stamp(Kind::all_gather), options), inputs, outputs[0], body);
}

// outputs[rank][i] is that rank's inputs[i].
WorkPtr ProcessGroupRendez::allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                                const c10d::AllgatherOptions &options) {
    check_dense(inputs, "all_gather_coalesced");
    TORCH_CHECK(outputs.size() == static_cast<size_t>(size_), "rendez: all_gather_coalesced wants outputs of ", size_,
                " ranks");
    for (const Tensors &list : outputs) {
        check_written(list, "all_gather_coalesced");
        TORCH_CHECK(list.size() == inputs.size(), "rendez: all_gather_coalesced wants ", inputs.size(),
                    " outputs for each rank");
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
        check_same(inputs[i], outputs[static_cast<size_t>(rank_)][i], "all_gather_coalesced");
    }
    auto body = [inputs, outputs](Collective &collective) {
        for (size_t i = 0; i < inputs.size(); ++i) {
            Tensors into;
            for (const Tensors &list : outputs) {
                into.push_back(list[i]);
            }
            Outputs made(into);
            collective.spread(piece_of(dense(inputs[i])), pieces_of(made.tensors()));
            made.finish();
        }
    };
    return run(call(c10d::OpType::ALLGATHER_COALESCED, Stamp(Kind::all_gather), options), inputs, flat(outputs), body);
}

WorkPtr ProcessGroupRendez::_allgather_base(at::Tensor &output, at::Tensor &input,
                                            const c10d::AllgatherOptions &options) {
    Tensors outputs{output}, inputs{input};
    auto work = allgather_into_tensor_coalesced(outputs, inputs, options);
    return work;
}

WorkPtr ProcessGroupRendez::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                            const c10d::AllgatherOptions &options) {
    check_dense(inputs, "all_gather_into_tensor");
    check_written(outputs, "all_gather_into_tensor");
    TORCH_CHECK(outputs.size() == inputs.size(), "rendez: all_gather_into_tensor wants an output for each input");
    for (size_t i = 0; i < inputs.size(); ++i) {
        check_multiple(outputs[i], inputs[i], size_, "all_gather_into_tensor");
    }
    auto body = [outputs, inputs, ranks = size_](Collective &collective) {
        Outputs made(outputs);
        for (size_t i = 0; i < inputs.size(); ++i) {
            collective.spread(piece_of(dense(inputs[i])), equal_pieces(made.tensors()[i], ranks));
        }
        made.finish();
    };
    return run(call(c10d::OpType::_ALLGATHER_BASE, Stamp(Kind::all_gather), options), inputs, outputs, body);
}

WorkPtr ProcessGroupRendez::gather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::GatherOptions &options) {
    check_one(inputs, "gather");
    check_dense(inputs, "gather");
    check_root(options.rootRank, size_, "gather");
    auto root = static_cast<size_t>(options.rootRank);
    bool is_root = rank_ == options.rootRank;
    TORCH_CHECK(!is_root || (outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_)),
                "rendez: gather wants one output for each of ", size_, " ranks at its root");
    Tensors into = is_root ? outputs[0] : Tensors();
    check_written(into, "gather");
    if (is_root) {
        check_same(inputs[0], into[root], "gather");
    }
    auto body = [inputs, into, root, ranks = static_cast<size_t>(size_)](Collective &collective) {
        Outputs made(into);
        at::Tensor own = dense(inputs[0]);
        std::vector<Piece> out(ranks), in(ranks);
        out[root] = piece_of(own);
        collective.exchange(out, into.empty() ? in : pieces_of(made.tensors()));
        made.finish();
    };
    return run(call(c10d::OpType::GATHER, Stamp(Kind::gather, options.rootRank), options), inputs, into, body);
}

WorkPtr ProcessGroupRendez::scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                    const c10d::ScatterOptions &options) {
    check_one(outputs, "scatter");
    check_written(outputs, "scatter");
    check_root(options.rootRank, size_, "scatter");
    auto root = static_cast<size_t>(options.rootRank);
    bool is_root = rank_ == options.rootRank;
    TORCH_CHECK(!is_root || (inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_)),
                "rendez: scatter wants one input for each of ", size_, " ranks at its root");
    Tensors from = is_root ? inputs[0] : Tensors();
    check_dense(from, "scatter");
    if (is_root) {
        check_same(from[root], outputs[0], "scatter");
    }
    auto body = [outputs, from, root, ranks = static_cast<size_t>(size_)](Collective &collective) {
        Outputs made(outputs);
        Tensors own = dense(from);
        std::vector<Piece> out(ranks), in(ranks);
        in[root] = piece_of(made.tensors()[0]);
        collective.exchange(from.empty() ? out : pieces_of(own), in);
        made.finish();
    };
    return run(call(c10d::OpType::SCATTER, Stamp(Kind::scatter, options.rootRank), options), from, outputs, body);
}

WorkPtr ProcessGroupRendez::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                           const c10d::ReduceScatterOptions &options) {
    check_one(outputs, "reduce_scatter");
    check_written(outputs, "reduce_scatter");
    TORCH_CHECK(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
                "rendez: reduce_scatter wants one input for each of ", size_, " ranks");
    check_dense(inputs[0], "reduce_scatter");
    for (const at::Tensor &input : inputs[0]) {
        TORCH_CHECK(input.scalar_type() == outputs[0].scalar_type(),
                    "rendez: reduce_scatter was given tensors of two types");
    }
    TORCH_CHECK(inputs[0][static_cast<size_t>(rank_)].numel() == outputs[0].numel(),
                "rendez: reduce_scatter: this rank's input and its output are not of one size");
    Reduction how = reduction_of(options.reduceOp, outputs[0]);
    auto body = [outputs, from = inputs[0], how](Collective &collective) {
        Outputs made(outputs);
        Tensors own = dense(from);
        collective.reduce_scatter(pieces_of(own), elements_of(made.tensors()[0], how));
        made.finish();
    };
    return run(call(c10d::OpType::REDUCE_SCATTER, Stamp(Kind::reduce_scatter, how), options), inputs[0], outputs, body);
}

WorkPtr ProcessGroupRendez::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                                 const c10d::ReduceScatterOptions &options) {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr ProcessGroupRendez::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                            const c10d::ReduceScatterOptions &options) {
    check_dense(inputs, "reduce_scatter_tensor");
    check_written(outputs, "reduce_scatter_tensor");
    TORCH_CHECK(!outputs.empty() && outputs.size() == inputs.size(),
                "rendez: reduce_scatter_tensor wants an output for each input");
    for (size_t i = 0; i < inputs.size(); ++i) {
        check_multiple(inputs[i], outputs[i], size_, "reduce_scatter_tensor");
        reduction_of(options.reduceOp, inputs[i]);
    }
    Reduction how = reduction_of(options.reduceOp, inputs[0]);
    auto body = [outputs, inputs, how, ranks = size_](Collective &collective) {
        Outputs made(outputs);
        for (size_t i = 0; i < inputs.size(); ++i) {
            at::Tensor all = dense(inputs[i]);
            collective.reduce_scatter(equal_pieces(all, ranks), elements_of(made.tensors()[i], how));
        }
        made.finish();
    };
    Stamp stamp(Kind::reduce_scatter, how);
    return run(call(c10d::OpType::_REDUCE_SCATTER_BASE, stamp, options), inputs, outputs, body);
}

WorkPtr ProcessGroupRendez::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) {
    auto ranks = static_cast<size_t>(size_);
    TORCH_CHECK(outputs.size() == ranks && inputs.size() == ranks,
                "rendez: all_to_all wants one input and one output for each of ", ranks, " ranks");
    check_dense(inputs, "all_to_all");
    check_written(outputs, "all_to_all");
    return exchange(outputs, inputs, outputs, inputs, options);
}

// A part for each rank, and from each; `outputs` and `inputs` are the tensors that were given.
WorkPtr ProcessGroupRendez::exchange(const Tensors &output_parts, const Tensors &input_parts, Tensors outputs,
                                     const Tensors &inputs, const c10d::AllToAllOptions &options) {
    auto own = static_cast<size_t>(rank_);
    check_same(input_parts[own], output_parts[own], "all_to_all");
    auto body = [output_parts, input_parts](Collective &collective) {
        Outputs made(output_parts);
        Tensors own = dense(input_parts);
        collective.exchange(pieces_of(own), pieces_of(made.tensors()));
        made.finish();
    };
    return run(call(c10d::OpType::ALLTOALL, Stamp(Kind::all_to_all), options), inputs, std::move(outputs), body);
}

WorkPtr ProcessGroupRendez::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_sizes,
                                          std::vector<int64_t> &input_sizes, const c10d::AllToAllOptions &options) {
    check_dense({output, input}, "all_to_all_single");
    TORCH_CHECK(output.scalar_type() == input.scalar_type(),
                "rendez: all_to_all_single was given tensors of two types");
    TORCH_CHECK(output.is_contiguous() && input.is_contiguous(), "rendez: all_to_all_single wants contiguous tensors");
    Tensors outputs = parts_of(output, output_sizes, size_, "all_to_all_single");
    Tensors inputs = parts_of(input, input_sizes, size_, "all_to_all_single");
    // The parts are this function's: the result is the tensor that was given.
    return exchange(outputs, inputs, {output}, {input}, options);
}

WorkPtr ProcessGroupRendez::barrier(const c10d::BarrierOptions &options) {
    return run(call(c10d::OpType::BARRIER, Stamp(Kind::barrier), options), {}, {},
               [](Collective &collective) { collective.barrier(); });
}

} // namespace rendez_torch
