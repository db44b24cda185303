#include "kernels/cleared_buffers.h"

#include "kernels/buffer_type.h"
#include "kernels/ggml_internals.h"

#if defined(__linux__)

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace medusa::kernels {
namespace {

using Allocate = decltype(ggml_backend_buffer_type::iface.alloc_buffer);
using Clear = decltype(ggml_backend_buffer::iface.clear);

constexpr size_t least = size_t{1} << 20;  // below this, writing zeros is as good

Allocate stock_allocate = nullptr;
Clear stock_clear = nullptr;  // one for all CPU buffers
bool lazy = false;

// Zeros as fresh pages, if it is private memory that the system can take back; false if it cannot.
bool replace_pages(char* begin, size_t size) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(begin);
    const uintptr_t first = (at + page - 1) / page * page, last = (at + size) / page * page;
    if (size < least || madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) != 0) return false;
    std::memset(begin, 0, first - at);
    std::memset(reinterpret_cast<char*>(last), 0, at + size - last);
    return true;
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    char* begin = static_cast<char*>(ggml_backend_buffer_get_base(buffer));
    if (value != 0 || !replace_pages(begin, ggml_backend_buffer_get_size(buffer))) stock_clear(buffer, value);
}

// Memory from malloc, which is private and anonymous: its fresh pages are zeros.
ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    const ggml_backend_buffer_t buffer = stock_allocate(type, size);
    if (buffer && buffer->iface.clear == stock_clear) buffer->iface.clear = clear;
    return buffer;
}

// Whether this buffer's pages come back as zeros: not if memory is locked or shared.
bool pages_are_fresh(ggml_backend_buffer_t buffer) {
    char* begin = static_cast<char*>(ggml_backend_buffer_get_base(buffer));
    const size_t size = ggml_backend_buffer_get_size(buffer);
    std::memset(begin, 1, size);
    return replace_pages(begin, size) && std::all_of(begin, begin + size, [](char c) { return c == 0; });
}

}  // namespace

void clear_buffers_lazily() {
    const ggml_backend_buffer_type_t type = ggml_backend_cpu_buffer_type();
    if (lazy || !layout_is_known()) return;
    const ggml_backend_buffer_t probe = ggml_backend_buft_alloc_buffer(type, 2 * least);
    if (!probe) return;
    stock_clear = probe->iface.clear;
    lazy = stock_clear && pages_are_fresh(probe);
    ggml_backend_buffer_free(probe);
    if (!lazy) return;
    stock_allocate = type->iface.alloc_buffer;
    type->iface.alloc_buffer = allocate;
}

bool buffers_are_lazy() {
    return lazy;
}

}  // namespace medusa::kernels

#else

namespace medusa::kernels {

void clear_buffers_lazily() {}

bool buffers_are_lazy() {
    return false;
}

}  // namespace medusa::kernels

#endif
