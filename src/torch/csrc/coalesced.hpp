// The work of several operations that were called between `startCoalescing` and `endCoalescing`.
#pragma once

#include <algorithm>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "devices.hpp"

namespace rendez_torch {

// The work of several: done when all are, and failed if one is.
class CoalescedWork : public c10d::Work {
public:
    CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
        : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}
    bool isCompleted() override {
        return std::all_of(works_.begin(), works_.end(), [](auto &work) { return work->isCompleted(); });
    }
    bool isSuccess() const override {
        return std::all_of(works_.begin(), works_.end(), [](auto &work) { return work->isSuccess(); });
    }
    bool wait(std::chrono::milliseconds timeout) override {
        for (auto &work : works_) {
            work->wait(timeout);
        }
        return true;
    }
    void synchronize() override { wait(kNoTimeout); }
    std::vector<at::Tensor> result() override {
        std::vector<at::Tensor> all;
        for (auto &work : works_) {
            auto some = work->result();
            all.insert(all.end(), some.begin(), some.end());
        }
        return all;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
        auto type = c10::ListType::create(c10::TensorType::get());
        auto future = c10::make_intrusive<c10::ivalue::Future>(type, devices_of(result()));
        c10::List<c10::intrusive_ptr<c10::ivalue::Future>> parts(
            c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
        for (auto &work : works_) {
            parts.push_back(work->getFuture());
        }
        auto all = c10::collectAll(parts);
        all->addCallback([future, tensors = result()](c10::ivalue::Future &done) {
            done.hasError() ? future->setError(done.exception_ptr()) : future->markCompleted(c10::IValue(tensors));
        });
        return future;
    }

private:
    std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

} // namespace rendez_torch
