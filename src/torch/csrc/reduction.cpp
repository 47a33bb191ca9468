// Reductions of elements in memory: see reduction.hpp.
#include "reduction.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum_cpu_dispatch.h>
#include <ATen/ops/minimum_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <c10/util/Exception.h>

namespace rendez_torch {
namespace {

// Those that torch reduces: a NaN wins there.
bool is_float(c10::ScalarType type) {
    switch (type) {
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
        return true;
    default:
        return false;
    }
}

// torch shares longer runs out among threads, which the program may want for something else.
constexpr size_t kRun = 32704;

at::Tensor seen(const void *data, size_t count, c10::ScalarType type) {
    return at::from_blob(const_cast<void *>(data), {static_cast<int64_t>(count)}, type);
}

// Calls `f` with each run of elements: its first one, and how many they are.
template <class F> void by_runs(size_t count, F f) {
    for (size_t at = 0; at < count; at += kRun) {
        f(at, std::min(kRun, count - at));
    }
}

// By functions of the CPU: modes of the user's, and profiles, do not see them.
void floating(at::Tensor into, const at::Tensor &from, Reduction how) {
    switch (how) {
    case Reduction::product:
        at::cpu::mul_(into, from);
        return;
    case Reduction::minimum:
        at::cpu::minimum_out(into, into, from);
        return;
    case Reduction::maximum:
        at::cpu::maximum_out(into, into, from);
        return;
    default:
        at::cpu::add_(into, from);
    }
}

template <class T, class F> void each(T *__restrict into, const T *__restrict from, size_t count, F f) {
    for (size_t i = 0; i < count; ++i) {
        into[i] = f(into[i], from[i]);
    }
}

// Of unsigned ones torch has not all.
template <class T> void integral(T *into, const T *from, size_t count, Reduction how) {
    switch (how) {
    case Reduction::bit_and:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a & b); });
    case Reduction::bit_or:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a | b); });
    case Reduction::bit_xor:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a ^ b); });
    case Reduction::product:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a * b); });
    case Reduction::minimum:
        return each(into, from, count, [](T a, T b) { return b < a ? b : a; });
    case Reduction::maximum:
        return each(into, from, count, [](T a, T b) { return a < b ? b : a; });
    default:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a + b); });
    }
}

// Truth: a sum and a maximum are `or`, a product and a minimum are `and`.
void logical(uint8_t *into, const uint8_t *from, size_t count, Reduction how) {
    switch (how) {
    case Reduction::product:
    case Reduction::minimum:
    case Reduction::bit_and:
        return each(into, from, count, [](uint8_t a, uint8_t b) { return uint8_t(a && b); });
    case Reduction::bit_xor:
        return each(into, from, count, [](uint8_t a, uint8_t b) { return uint8_t(!a != !b); });
    default:
        return each(into, from, count, [](uint8_t a, uint8_t b) { return uint8_t(a || b); });
    }
}

// A number of ranks need not fit a small type.
template <class T> void divide(T *into, size_t count, int ranks) {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    for (size_t i = 0; i < count; ++i) {
        into[i] = static_cast<T>(static_cast<Wide>(into[i]) / static_cast<Wide>(ranks));
    }
}

// Calls `f` with a null pointer of an integer's type in memory.
template <class F> void with_type(c10::ScalarType type, F f) {
    switch (type) {
    case c10::ScalarType::Byte:
        return f(static_cast<uint8_t *>(nullptr));
    case c10::ScalarType::Char:
        return f(static_cast<int8_t *>(nullptr));
    case c10::ScalarType::Short:
        return f(static_cast<int16_t *>(nullptr));
    case c10::ScalarType::UInt16:
        return f(static_cast<uint16_t *>(nullptr));
    case c10::ScalarType::Int:
        return f(static_cast<int32_t *>(nullptr));
    case c10::ScalarType::UInt32:
        return f(static_cast<uint32_t *>(nullptr));
    case c10::ScalarType::Long:
        return f(static_cast<int64_t *>(nullptr));
    case c10::ScalarType::UInt64:
        return f(static_cast<uint64_t *>(nullptr));
    default:
        TORCH_CHECK(false, "rendez cannot reduce elements of type ", c10::toString(type));
    }
}

bool is_bits(Reduction how) {
    return how == Reduction::bit_and || how == Reduction::bit_or || how == Reduction::bit_xor;
}

} // namespace

void check_reduction(Reduction how, c10::ScalarType type) {
    if (type == c10::ScalarType::Bool) {
        TORCH_CHECK(how != Reduction::average, "rendez cannot average truth values");
        return;
    }
    if (!is_float(type)) {
        with_type(type, [](auto *) {});
    }
    TORCH_CHECK(!is_bits(how) || c10::isIntegralType(type, true), "rendez reduces bits of integers only, not of ",
                c10::toString(type));
    bool is_order = how == Reduction::minimum || how == Reduction::maximum;
    TORCH_CHECK(!is_order || !c10::isComplexType(type), "complex numbers have no minimum and no maximum");
}

void reduce(void *into, const void *from, size_t count, c10::ScalarType type, Reduction how) {
    if (type == c10::ScalarType::Bool) {
        return logical(static_cast<uint8_t *>(into), static_cast<const uint8_t *>(from), count, how);
    }
    if (is_float(type)) {
        size_t width = c10::elementSize(type);
        return by_runs(count, [&](size_t at, size_t run) {
            auto *into_run = static_cast<char *>(into) + at * width;
            const auto *from_run = static_cast<const char *>(from) + at * width;
            floating(seen(into_run, run, type), seen(from_run, run, type), how);
        });
    }
    with_type(type, [&](auto *of) {
        using T = std::remove_pointer_t<decltype(of)>;
        integral(static_cast<T *>(into), static_cast<const T *>(from), count, how);
    });
}

void finish_reduction(void *into, size_t count, c10::ScalarType type, Reduction how, int ranks) {
    if (how != Reduction::average) {
        return;
    }
    if (is_float(type)) {
        double divisor = ranks;
        at::Tensor by = at::from_blob(&divisor, {}, at::kDouble);
        return by_runs(count, [&](size_t at, size_t run) {
            at::Tensor all = seen(static_cast<char *>(into) + at * c10::elementSize(type), run, type);
            at::cpu::div_(all, by);
        });
    }
    with_type(type, [&](auto *of) {
        using T = std::remove_pointer_t<decltype(of)>;
        divide(static_cast<T *>(into), count, ranks);
    });
}

} // namespace rendez_torch
