// Reductions of elements in memory: `into = into op from`, for every type of a tensor that has an order or a sum.
#pragma once

#include <cstddef>

#include <c10/core/ScalarType.h>

namespace rendez_torch {

enum class Reduction { sum, average, product, minimum, maximum, bit_and, bit_or, bit_xor };

// Throws if these elements cannot be reduced so: bits of floats, the order of complex numbers.
void check_reduction(Reduction how, c10::ScalarType type);

// Reduces `count` elements. An average sums; `finish_reduction` divides it.
void reduce(void *into, const void *from, size_t count, c10::ScalarType type, Reduction how);

// Divides what an average has summed by the number of ranks; does nothing for other reductions.
void finish_reduction(void *into, size_t count, c10::ScalarType type, Reduction how, int ranks);

} // namespace rendez_torch
