// Largest numbers of rows, in ggml operators that every device has, with the same answers for ties as on the host:
// ggml's own argmax, top-k and sorting leave open which of several equal numbers they name.
#pragma once

#include "ggml.h"

namespace medusa::in_graph {

// Both read x [length, rows], contiguous, with at most 2^24 numbers per row, and return places as F32.

// The place of the largest number in each row (ties: the first): [1, rows]. Rows must hold no NaN; for those that do,
// the result is still a place.
ggml_tensor* first_largest(ggml_context* c, ggml_tensor* x);

// The places of the `count` largest numbers in each row, largest first, each once: [count, rows]. NaN counts as 0.
ggml_tensor* largest(ggml_context* c, ggml_tensor* x, int64_t count);
inline constexpr size_t largest_tensors = 48;  // most that it makes

// The same by sorting whole rows, which must hold no NaN: for short ones.
ggml_tensor* first_sorted(ggml_context* c, ggml_tensor* x, int64_t count);

// From each row of from [length, rows], the numbers at places [count, rows] (I32): [count, rows].
ggml_tensor* at_places(ggml_context* c, ggml_tensor* from, ggml_tensor* places);

// Whole numbers as indices into something of `length` entries, which they cannot exceed.
ggml_tensor* as_index(ggml_context* c, ggml_tensor* numbers, int64_t length);
ggml_tensor* as_numbers(ggml_context* c, ggml_tensor* indices);

}  // namespace medusa::in_graph
