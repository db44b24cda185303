// What recycling has learned, as bytes that outlive a process.
#pragma once

#include <string>
#include <string_view>

#include "drafting/recycling.h"

namespace medusa {

// Token ids of the table are the person's text: whoever keeps the bytes keeps that. At most some 40 bytes for each
// token of the vocabulary and 50 for each pair that there is room for.
std::string to_bytes(const RecyclingTable& table, const RecyclingWorth& worth);
// The inverse. Throws Error unless the bytes are whole, and made for a vocabulary of the table's size; then neither the
// table nor the worth is touched.
void from_bytes(std::string_view bytes, RecyclingTable& table, RecyclingWorth& worth);

}  // namespace medusa
