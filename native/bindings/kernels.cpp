#include <cstring>

#include "bindings/bindings.h"
#include "common.h"
#include "kernels/buffer_type.h"
#include "kernels/format.h"
#include "ndarray.h"
#include "quantize.h"

namespace medusa {
namespace {

using kernels::Kernels;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const Kernels& kernels_named(const std::string& name) {
    for (const Kernels* one : kernels::supported_kernels()) {
        if (name == one->name) return *one;
    }
    throw Error("no kernels '" + name + "' on this processor");
}

// Memory between guard bytes, which nobody may touch.
class Guarded {
  public:
    explicit Guarded(size_t size) : size_(size), bytes_(size + 2 * guard, mark) {}
    char* data() { return bytes_.data() + guard; }
    bool intact() const {
        const auto marked = [](auto begin, auto end) {
            return std::all_of(begin, end, [](char c) { return c == mark; });
        };
        return marked(bytes_.begin(), bytes_.begin() + guard) && marked(bytes_.begin() + guard + size_, bytes_.end());
    }

  private:
    static constexpr size_t guard = 256;
    static constexpr char mark = 0x5A;
    size_t size_;
    std::vector<char> bytes_;
};

// weights [rows, columns] as bytes of a ggml type, x [n, columns] -> [n, rows] by the kernels of one instruction set.
nb::object kernel_product(const std::string& isa, const std::string& type_name, const nb::bytes& weights,
                          int64_t columns, const Matrix& x) {
    const Kernels& chosen = kernels_named(isa);
    const kernels::Format* format = nullptr;
    for (int i = 0; i < GGML_TYPE_COUNT && !format; ++i) {
        const auto type = static_cast<ggml_type>(i);
        if (ggml_type_name(type) && type_name == ggml_type_name(type)) format = kernels::format_of(type);
    }
    if (!format) throw Error("no kernel for type '" + type_name + "'");
    if (columns != static_cast<int64_t>(x.shape(1))) throw Error("weights and x differ in columns");
    const size_t row_bytes = ggml_row_size(format->type, columns);
    const auto rows = static_cast<int64_t>(weights.size() / row_bytes);
    if (!kernels::fits(*format, columns, rows)) throw Error("the matrix does not fill whole groups and blocks");
    const auto n = static_cast<int>(x.shape(0));
    const size_t stride = kernels::column_bytes(columns);
    Guarded packed(kernels::packed_bytes(*format, columns, rows)), activations(stride * n),
        result(sizeof(float) * n * rows);
    kernels::pack(*format, weights.c_str(), packed.data(), columns, 0, rows / kernels::group_rows);
    for (int c = 0; c < n; ++c)
        chosen.quantise(*format, x.data() + c * columns, columns, activations.data() + c * stride);
    chosen.multiply(*format, packed.data(), columns, 0, rows / kernels::group_rows, activations.data(), stride, n,
                    reinterpret_cast<float*>(result.data()), static_cast<size_t>(rows));
    if (!packed.intact() || !activations.intact() || !result.intact()) throw Error("a kernel wrote outside its buffer");
    return new_matrix<float>(reinterpret_cast<const float*>(result.data()), static_cast<size_t>(n),
                             static_cast<size_t>(rows));
}

}  // namespace

void bind_kernels(nb::module_& m) {
    m.def("kernel_names", [] {
        std::vector<std::string> names;
        for (const Kernels* one : kernels::supported_kernels()) names.emplace_back(one->name);
        return names;
    });
    m.def("kernel_types", &kernels::type_names);
    m.def("kernel_product", &kernel_product, "isa"_a, "type"_a, "weights"_a, "columns"_a, "x"_a);
}

}  // namespace medusa
