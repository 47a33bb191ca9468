// What the ranks of a collective have to agree on: see stamp.hpp.
#include "stamp.hpp"

#include <array>
#include <cstring>

#include <c10/util/StringUtil.h>

namespace rendez_torch {
namespace {

constexpr std::array kKinds{"broadcast", "all_reduce", "sparse all_reduce", "reduce",     "all_gather",
                            "gather",    "scatter",    "reduce_scatter",    "all_to_all", "barrier"};
constexpr std::array kReductions{"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"};

// What another rank says may be anything.
template <class Names> const char *name_in(const Names &names, uint64_t number) {
    return number < names.size() ? names[number] : "unknown";
}

} // namespace

const char *name_of(Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

Stamp::Stamp(const char *at) { std::memcpy(static_cast<void *>(this), at, sizeof *this); }

std::string Stamp::told(size_t bytes) const {
    auto is = [this](Kind one) { return kind == static_cast<uint64_t>(one); };
    auto said = c10::str("collective ", number, ", ", name_in(kKinds, kind));
    if (how != 0) {
        said += c10::str(" with ", name_in(kReductions, how - 1));
    }
    if (is(Kind::reduce) || is(Kind::gather)) {
        said += c10::str(" to rank ", root);
    } else if (is(Kind::broadcast) || is(Kind::scatter)) {
        said += c10::str(" from rank ", root);
    }
    return c10::str(said, " (", bytes, " bytes of ", c10::toString(static_cast<c10::ScalarType>(type)),
                    goes_on != 0 ? " and more)" : ")");
}

} // namespace rendez_torch
