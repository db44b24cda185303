#include "kernels/attention_layout.h"

#include <algorithm>
#include <iterator>

namespace medusa::kernels {
namespace {

constexpr int64_t kept_bytes = int64_t{1} << 22;  // of scores, for all rows worked on together
constexpr int64_t batch_tokens = 16;              // of a text: what they see differs in at most two blocks of cells
constexpr int64_t own_cells = 512;                // with so few, barriers cost more than sharing the cells gains
constexpr size_t line = 64;

size_t whole_lines(int64_t bytes) {
    return (static_cast<size_t>(bytes) + line - 1) / line * line;
}

}  // namespace

AttentionLayout attention_layout(const Attention& a, int64_t rows, int parts) {
    (void)parts;
    AttentionLayout layout{};
    layout.rows = rows, layout.value_size = a.value_size;
    // Rows that begin and end within a key head touch one more key head than they fill.
    layout.key_heads = std::min(a.key_heads, (rows + a.rows_per_key_head() - 1) / a.rows_per_key_head() + 1);
    layout.scores_bytes = whole_lines(rows * a.cells * 4);
    const int64_t bytes[] = {3 * 8,
                             rows * 4,
                             rows * 8,
                             rows * attention_lanes / 2 * 8,
                             rows * a.key_size * 4,
                             rows * 8,
                             rows * attention_lanes * 4,
                             rows * a.value_size * 4,
                             rows * a.value_size * 4,
                             attention_lanes * std::max(a.key_size, a.value_size) * 4,
                             a.cells / attention_lanes * static_cast<int64_t>(sizeof(SeenBlock)),
                             rows * a.value_size * 2,
                             layout.key_heads * a.value_size * 2};
    for (size_t i = 0; i < std::size(bytes); ++i) {
        layout.offsets[i] = layout.part_bytes;
        layout.part_bytes += whole_lines(bytes[i]);
    }
    layout.part_bytes += line;  // otherwise two parts' fields would lie in the same sets of the cache
    return layout;
}

AttentionPart AttentionLayout::part(void* scratch, int i) const {
    char* base = static_cast<char*>(scratch) + scores_bytes + static_cast<size_t>(i) * part_bytes;
    const auto at = [&](int field, auto* type) { return reinterpret_cast<decltype(type)>(base + offsets[field]); };
    AttentionPart part{};
    part.range = at(0, part.range), part.tops = at(1, part.tops), part.totals = at(2, part.totals);
    part.total_lanes = at(3, part.total_lanes), part.q = at(4, part.q), part.mask = at(5, part.mask);
    part.largest = at(6, part.largest), part.sums = at(7, part.sums), part.starts = at(8, part.starts);
    part.floats = at(9, part.floats), part.blocks = at(10, part.blocks);
    part.own_most = at(11, part.own_most), part.shared_most = at(12, part.shared_most);
    return part;
}

size_t attention_scratch(const Attention& a, int64_t rows, int parts) {
    const AttentionLayout layout = attention_layout(a, rows, parts);
    return layout.scores_bytes + layout.part_bytes * static_cast<size_t>(parts);
}

int64_t attention_batch(const Attention& a) {
    const int64_t rows = std::max<int64_t>(kept_bytes / (a.cells * 4), 8);
    return std::min(a.rows(), rows);
}

int64_t attention_batch_end(const Attention& a, int64_t begin) {
    const int64_t end = std::min(begin + attention_batch(a), a.rows());
    if (a.tokens <= batch_tokens) return end;
    const int64_t each = a.rows_per_key_head(), within = begin % each, step = a.group() * batch_tokens;
    return std::min({end, begin - within + each, begin - within % step + step});
}

bool attention_shares_cells(const Attention& a, int threads) {
    return threads > 1 && a.cells > own_cells && a.rows() <= 16 * attention_batch(a) && a.tokens <= 64;
}

}  // namespace medusa::kernels
