// Reductions of elements in memory: see reduction.hpp.
#include "reduction.hpp"

#include <cmath>
#include <complex>
#include <cstdint>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

namespace rendez_torch {
namespace {

template <class T> struct is_complex : std::false_type {};
template <class T> struct is_complex<std::complex<T>> : std::true_type {};

template <class T> bool is_nan(T value) {
    if constexpr (std::is_integral_v<T>) {
        return false;
    } else {
        return value != value;
    }
}

template <class T, class F> void each(T *__restrict into, const T *__restrict from, size_t count, F f) {
    for (size_t i = 0; i < count; ++i) {
        into[i] = f(into[i], from[i]);
    }
}

// Sums, products and, where the type has an order, extremes. A NaN wins, as in torch.
template <class T> void arithmetic(T *into, const T *from, size_t count, Reduction how) {
    switch (how) {
    case Reduction::sum:
    case Reduction::average:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a + b); });
    case Reduction::product:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a * b); });
    default:
        break;
    }
    if constexpr (!is_complex<T>::value) {
        if (how == Reduction::minimum) {
            return each(into, from, count, [](T a, T b) { return b < a || is_nan(b) ? b : a; });
        }
        return each(into, from, count, [](T a, T b) { return a < b || is_nan(b) ? b : a; });
    }
}

template <class T> void integral(T *into, const T *from, size_t count, Reduction how) {
    switch (how) {
    case Reduction::bit_and:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a & b); });
    case Reduction::bit_or:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a | b); });
    case Reduction::bit_xor:
        return each(into, from, count, [](T a, T b) { return static_cast<T>(a ^ b); });
    default:
        return arithmetic(into, from, count, how);
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

template <class T> void divide(T *into, size_t count, int ranks) {
    for (size_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>) {
            into[i] = static_cast<T>(static_cast<float>(into[i]) / static_cast<float>(ranks));
        } else if constexpr (std::is_integral_v<T>) {
            // A number of ranks need not fit a small type.
            using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
            into[i] = static_cast<T>(static_cast<Wide>(into[i]) / static_cast<Wide>(ranks));
        } else {
            into[i] = static_cast<T>(into[i] / static_cast<T>(ranks));
        }
    }
}

// Calls `f` with a null pointer of the element's type in memory.
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
    case c10::ScalarType::Half:
        return f(static_cast<c10::Half *>(nullptr));
    case c10::ScalarType::BFloat16:
        return f(static_cast<c10::BFloat16 *>(nullptr));
    case c10::ScalarType::Float:
        return f(static_cast<float *>(nullptr));
    case c10::ScalarType::Double:
        return f(static_cast<double *>(nullptr));
    case c10::ScalarType::ComplexFloat:
        return f(static_cast<std::complex<float> *>(nullptr));
    case c10::ScalarType::ComplexDouble:
        return f(static_cast<std::complex<double> *>(nullptr));
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
    with_type(type, [](auto *) {});
    TORCH_CHECK(!is_bits(how) || c10::isIntegralType(type, true), "rendez reduces bits of integers only, not of ",
                c10::toString(type));
    bool is_order = how == Reduction::minimum || how == Reduction::maximum;
    TORCH_CHECK(!is_order || !c10::isComplexType(type), "complex numbers have no minimum and no maximum");
}

void reduce(void *into, const void *from, size_t count, c10::ScalarType type, Reduction how) {
    if (type == c10::ScalarType::Bool) {
        return logical(static_cast<uint8_t *>(into), static_cast<const uint8_t *>(from), count, how);
    }
    with_type(type, [&](auto *of) {
        using T = std::remove_pointer_t<decltype(of)>;
        if constexpr (std::is_integral_v<T>) {
            integral(static_cast<T *>(into), static_cast<const T *>(from), count, how);
        } else {
            arithmetic(static_cast<T *>(into), static_cast<const T *>(from), count, how);
        }
    });
}

void finish_reduction(void *into, size_t count, c10::ScalarType type, Reduction how, int ranks) {
    if (how != Reduction::average) {
        return;
    }
    with_type(type, [&](auto *of) {
        using T = std::remove_pointer_t<decltype(of)>;
        divide(static_cast<T *>(into), count, ranks);
    });
}

} // namespace rendez_torch
