// Tensors as runs of bytes: checked, made contiguous where they are not, and copied back.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "collectives.hpp"

namespace rendez_torch {

using Tensors = std::vector<at::Tensor>;

// Throws unless they are dense tensors of the CPU or of GPUs.
inline void check_dense(const Tensors &tensors, const char *what) {
    for (const at::Tensor &tensor : tensors) {
        TORCH_CHECK(tensor.defined(), "rendez: ", what, " was given a tensor that is none");
        TORCH_CHECK(tensor.device().is_cpu() || tensor.device().is_cuda(), "rendez: ", what,
                    " takes tensors of the CPU and of CUDA devices, and this one is on ", tensor.device());
        TORCH_CHECK(tensor.layout() == at::kStrided, "rendez: ", what, " takes dense tensors, and this one is ",
                    tensor.layout());
    }
}

// Memory of the host for the elements of a tensor: pinned where they go to a device or come from one.
inline at::Tensor host_like(const at::Tensor &tensor) {
    return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(!tensor.device().is_cpu()));
}

// Whether the memory of a tensor is its elements, in the host and without gaps. That of a conjugate or a negative may
// be that of what it was made of.
inline bool is_dense(const at::Tensor &tensor) {
    return tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// A tensor's elements in the host's memory, without gaps: itself where it lies so, else a copy that is there.
inline at::Tensor dense(const at::Tensor &tensor) {
    return tensor.device().is_cpu() ? tensor.resolve_conj().resolve_neg().contiguous()
                                    : host_like(tensor).copy_(tensor);
}

inline Piece piece_of(const at::Tensor &contiguous) {
    return {static_cast<char *>(contiguous.data_ptr()), contiguous.nbytes(), contiguous.scalar_type()};
}

inline std::vector<Piece> pieces_of(const Tensors &contiguous) {
    std::vector<Piece> pieces;
    pieces.reserve(contiguous.size());
    for (const at::Tensor &tensor : contiguous) {
        pieces.push_back(piece_of(tensor));
    }
    return pieces;
}

inline Elements elements_of(const at::Tensor &contiguous, Reduction how) {
    return {static_cast<char *>(contiguous.data_ptr()), static_cast<size_t>(contiguous.numel()),
            contiguous.scalar_type(), how};
}

inline Tensors dense(const Tensors &tensors) {
    Tensors made;
    made.reserve(tensors.size());
    for (const at::Tensor &tensor : tensors) {
        made.push_back(dense(tensor));
    }
    return made;
}

// Tensors to be written: those that lie in the host's memory without gaps as they are, others as memory that `finish`
// copies to them.
class Outputs {
public:
    explicit Outputs(const Tensors &tensors, bool is_read = false) : given_(tensors) {
        for (const at::Tensor &tensor : tensors) {
            made_.push_back(is_dense(tensor) ? tensor : is_read ? dense(tensor) : host_like(tensor));
        }
    }
    const Tensors &tensors() const { return made_; }
    void finish() {
        for (size_t i = 0; i < given_.size(); ++i) {
            if (!made_[i].is_same(given_[i])) {
                given_[i].copy_(made_[i]);
            }
        }
    }

private:
    Tensors given_, made_;
};

inline Reduction reduction_of(const c10d::ReduceOp &op, const at::Tensor &tensor) {
    Reduction how = Reduction::sum;
    switch (op.op_) {
    case c10d::ReduceOp::SUM:
        break;
    case c10d::ReduceOp::AVG:
        how = Reduction::average;
        break;
    case c10d::ReduceOp::PRODUCT:
        how = Reduction::product;
        break;
    case c10d::ReduceOp::MIN:
        how = Reduction::minimum;
        break;
    case c10d::ReduceOp::MAX:
        how = Reduction::maximum;
        break;
    case c10d::ReduceOp::BAND:
        how = Reduction::bit_and;
        break;
    case c10d::ReduceOp::BOR:
        how = Reduction::bit_or;
        break;
    case c10d::ReduceOp::BXOR:
        how = Reduction::bit_xor;
        break;
    default:
        TORCH_CHECK(false, "rendez has no such reduction: PREMUL_SUM is for nccl alone");
    }
    check_reduction(how, tensor.scalar_type());
    return how;
}

// The parts of a tensor along its first dimension: equal ones unless sizes are given.
inline Tensors parts_of(const at::Tensor &tensor, const std::vector<int64_t> &sizes, int ranks, const char *what) {
    if (!sizes.empty()) {
        TORCH_CHECK(sizes.size() == static_cast<size_t>(ranks), "rendez: ", what, " wants one size for each of ", ranks,
                    " ranks, and was given ", sizes.size());
        return tensor.split_with_sizes(sizes, 0);
    }
    TORCH_CHECK(tensor.dim() > 0 && tensor.size(0) % ranks == 0, "rendez: ", what, ": the first dimension of ",
                tensor.sizes(), " cannot be divided by ", ranks, " ranks");
    // `split` makes one part of a dimension that is empty.
    return tensor.split_with_sizes(std::vector<int64_t>(static_cast<size_t>(ranks), tensor.size(0) / ranks), 0);
}

} // namespace rendez_torch
