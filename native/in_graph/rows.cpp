#include "in_graph/rows.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace medusa::in_graph {
namespace {

// Rows are searched by block, and then within a block: the only pass over whole rows is the one that finds the largest
// number of each block. Half of the padding lies before the first number, half after the last.
struct Blocks {
    int64_t length, size, count, padding;

    // About as many blocks as there are numbers in `wanted` of them.
    Blocks(int64_t row_length, int64_t wanted) : length(row_length) {
        size = std::max<int64_t>(static_cast<int64_t>(std::sqrt(static_cast<double>(length / wanted))), 1);
        count = (length + size - 1) / size;
        padding = (count * size - length + 1) / 2;
    }
};

// [length, rows] -> [count, rows]
ggml_tensor* largest_of_blocks(ggml_context* c, ggml_tensor* x, const Blocks& blocks) {
    const auto size = static_cast<int>(blocks.size);
    return ggml_pool_1d(c, x, GGML_OP_POOL_MAX, size, size, static_cast<int>(blocks.padding));
}

// Without infinities, whose difference is not a number. In place.
ggml_tensor* bounded(ggml_context* c, ggml_tensor* x) {
    return ggml_clamp(c, x, -FLT_MAX, FLT_MAX);
}

// In each row of x [length, rows], the first place that holds its number in largest [1, rows], which none exceeds.
ggml_tensor* first_equal(ggml_context* c, ggml_tensor* x, ggml_tensor* largest_numbers) {
    constexpr float steep = 1e38f;  // anything smaller falls below -1
    const int64_t length = x->ne[0];
    ggml_tensor* below = ggml_sub(c, x, largest_numbers);
    ggml_tensor* equal = ggml_step(c, ggml_scale_bias(c, below, steep, 1.0f));
    // No two places have the same score, so it does not matter which of several equals argmax names.
    ggml_tensor* late = ggml_scale(c, ggml_arange(c, 0.0f, static_cast<float>(length), 1.0f), -0.5f / length);
    return as_numbers(c, ggml_argmax(c, ggml_add(c, equal, late)));
}

// Places of the numbers in blocks [1, ...] of a row; those in the padding are outside 0 .. length - 1.
ggml_tensor* places_of(ggml_context* c, ggml_tensor* block, const Blocks& blocks) {
    ggml_tensor* first =
        ggml_scale_bias(c, block, static_cast<float>(blocks.size), -static_cast<float>(blocks.padding));
    ggml_tensor* within = ggml_arange(c, 0.0f, static_cast<float>(blocks.size), 1.0f);
    return ggml_add(c, ggml_repeat_4d(c, within, blocks.size, block->ne[1], block->ne[2], 1), first);
}

// x limited to 0 .. most. Unlike ggml_clamp(), not in place.
ggml_tensor* limited(ggml_context* c, ggml_tensor* x, int64_t most) {
    ggml_tensor* above = ggml_relu(c, ggml_scale_bias(c, x, 1.0f, -static_cast<float>(most)));
    return ggml_sub(c, ggml_relu(c, x), above);
}

}  // namespace

ggml_tensor* as_index(ggml_context* c, ggml_tensor* numbers, int64_t length) {
    return ggml_cast(c, limited(c, numbers, length - 1), GGML_TYPE_I32);
}

ggml_tensor* as_numbers(ggml_context* c, ggml_tensor* indices) {
    return ggml_cast(c, indices, GGML_TYPE_F32);
}

ggml_tensor* at_places(ggml_context* c, ggml_tensor* from, ggml_tensor* places) {
    const int64_t length = from->ne[0], rows = from->ne[1], count = places->ne[0];
    ggml_tensor* single = ggml_reshape_3d(c, from, 1, length, rows);
    return ggml_reshape_2d(c, ggml_get_rows(c, single, places), count, rows);
}

ggml_tensor* first_sorted(ggml_context* c, ggml_tensor* x, int64_t count) {
    return as_numbers(c, ggml_argsort_top_k(c, x, static_cast<int>(count)));  // contiguous, unlike the view of indices
}

ggml_tensor* first_largest(ggml_context* c, ggml_tensor* x) {
    const int64_t rows = x->ne[1];
    const Blocks blocks(x->ne[0], 1);
    const auto row_of = [&](ggml_tensor* numbers) { return ggml_reshape_2d(c, numbers, 1, rows); };
    ggml_tensor* tops = bounded(c, largest_of_blocks(c, x, blocks));
    ggml_tensor* any = row_of(as_numbers(c, ggml_argmax(c, tops)));
    ggml_tensor* top = at_places(c, tops, as_index(c, any, blocks.count));
    ggml_tensor* places = limited(c, places_of(c, row_of(first_equal(c, tops, top)), blocks), blocks.length - 1);
    ggml_tensor* numbers = bounded(c, at_places(c, x, ggml_cast(c, places, GGML_TYPE_I32)));
    ggml_tensor* within = row_of(first_equal(c, numbers, top));
    return at_places(c, places, as_index(c, within, blocks.size));
}

ggml_tensor* largest(ggml_context* c, ggml_tensor* x, int64_t count) {
    constexpr float lowest = 1e37f, outside = -1e38f;
    const int64_t rows = x->ne[1];
    const Blocks blocks(x->ne[0], count);
    x = ggml_leaky_relu(c, x, 1.0f, false);  // x itself, but 0 for NaN, which breaks sorting on the CPU
    // The `count` blocks whose largest numbers are largest hold all of them.
    ggml_tensor* chosen = ggml_reshape_3d(c, first_sorted(c, largest_of_blocks(c, x, blocks), count), 1, count, rows);
    ggml_tensor* places = ggml_reshape_2d(c, places_of(c, chosen, blocks), blocks.size * count, rows);
    ggml_tensor* inside = limited(c, places, blocks.length - 1);
    ggml_tensor* beside = ggml_step(c, ggml_scale_bias(c, ggml_abs(c, ggml_sub(c, places, inside)), 1.0f, -0.5f));
    ggml_tensor* numbers = at_places(c, x, ggml_cast(c, inside, GGML_TYPE_I32));
    numbers = ggml_add(c, ggml_clamp(c, numbers, -lowest, lowest), ggml_scale(c, beside, outside));
    return at_places(c, inside, as_index(c, first_sorted(c, numbers, count), blocks.size * count));
}

}  // namespace medusa::in_graph
