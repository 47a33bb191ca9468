// What the ranks of a collective have to agree on, as it goes with each value.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include <c10/core/ScalarType.h>

#include "reduction.hpp"

namespace rendez_torch {

// What a collective does. Its number goes to other ranks.
enum class Kind : uint8_t {
    broadcast,
    all_reduce,
    sparse_all_reduce,
    reduce,
    all_gather,
    gather,
    scatter,
    reduce_scatter,
    all_to_all,
    barrier,
};

const char *name_of(Kind kind);

// It stands behind the bytes of the first value of each piece, so that none is taken for one of another collective.
struct Stamp {
    // Which collective of its group it is.
    uint64_t number : 32 = 0;
    uint64_t root : 16 = 0;
    uint64_t kind : 4 = 0;
    // The reduction, counted from 1, or 0 for none.
    uint64_t how : 4 = 0;
    // That of the elements.
    uint64_t type : 7 = 0;
    // Whether the value is a part of a longer one, and not the last.
    uint64_t goes_on : 1 = 0;

    explicit Stamp(Kind kind, int64_t root = 0)
        : root(static_cast<uint64_t>(root) & 0xffff), kind(static_cast<uint64_t>(kind) & 0xf) {}
    Stamp(Kind kind, Reduction how, int64_t root = 0) : Stamp(kind, root) {
        this->how = (static_cast<uint64_t>(how) + 1) & 0xf;
    }
    // That of a value which ends with it.
    explicit Stamp(const char *at);

    bool operator==(const Stamp &other) const {
        return std::bit_cast<uint64_t>(*this) == std::bit_cast<uint64_t>(other);
    }
    // As a rank would say it of a value of so many bytes.
    std::string told(size_t bytes) const;
};

static_assert(sizeof(Stamp) == sizeof(uint64_t) && static_cast<int>(c10::ScalarType::NumOptions) < 128);

} // namespace rendez_torch
