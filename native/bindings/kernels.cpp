#include <cstring>

#include "base/common.h"
#include "base/quantize.h"
#include "bindings/bindings.h"
#include "bindings/ndarray.h"
#include "kernels/attention.h"
#include "kernels/buffer_type.h"
#include "kernels/format.h"

namespace medusa {
namespace {

using kernels::Kernels;
template <typename T>
using Tensor3 = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using HalfMatrix = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
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
        chosen.quantize(*format, x.data() + c * columns, columns, activations.data() + c * stride);
    chosen.multiply(*format, packed.data(), columns, 0, rows / kernels::group_rows, activations.data(), stride, n,
                    reinterpret_cast<float*>(result.data()), static_cast<size_t>(rows));
    if (!packed.intact() || !activations.intact() || !result.intact()) throw Error("a kernel wrote outside its buffer");
    return new_matrix<float>(reinterpret_cast<const float*>(result.data()), static_cast<size_t>(n),
                             static_cast<size_t>(rows));
}

// q [tokens, heads, size], k and v [cells, key heads, size] and mask [tokens, cells] as half bits -> [tokens, heads,
// size], by `threads` shares in turn.
nb::object kernel_attention(const std::string& isa, const Tensor3<float>& q, const Tensor3<uint16_t>& k,
                            const Tensor3<uint16_t>& v, const HalfMatrix& mask, float scale, int threads) {
    const Kernels& chosen = kernels_named(isa);
    if (!chosen.attend) throw Error("no attention kernel");
    kernels::Attention a{};
    const auto halves = [](const auto& array) { return reinterpret_cast<const char*>(array.data()); };
    a.tokens = q.shape(0), a.heads = q.shape(1), a.key_size = q.shape(2);
    a.cells = k.shape(0), a.key_heads = k.shape(1), a.value_size = v.shape(2);
    a.q = halves(q), a.q_head = a.key_size * 4, a.q_token = a.heads * a.q_head;
    a.k = halves(k), a.k_head = a.key_size * 2, a.k_cell = a.key_heads * a.k_head;
    a.v = halves(v), a.v_head = a.value_size * 2, a.v_cell = a.key_heads * a.v_head;
    a.mask = halves(mask), a.mask_token = a.cells * 2;
    a.scale = scale;
    if (!kernels::attention_fits(a.key_size, a.value_size, a.cells)) throw Error("sizes that the kernel does not take");
    const size_t size = kernels::attention_scratch(a.key_size, a.value_size, a.cells);
    Guarded out(sizeof(float) * a.rows() * a.value_size);
    a.out = reinterpret_cast<float*>(out.data());
    for (int thread = 0; thread < threads; ++thread) {
        Guarded scratch(size);
        chosen.attend(a, a.rows() * thread / threads, a.rows() * (thread + 1) / threads, scratch.data());
        if (!scratch.intact() || !out.intact()) throw Error("a kernel wrote outside its buffer");
    }
    return new_matrix<float>(a.out, a.tokens, a.heads * a.value_size);
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
    m.def("attention_names", [] {
        std::vector<std::string> names;
        for (const Kernels* one : kernels::supported_kernels()) {
            if (one->attend) names.emplace_back(one->name);
        }
        return names;
    });
    m.def("kernel_attention", &kernel_attention, "isa"_a, "q"_a, "k"_a, "v"_a, "mask"_a, "scale"_a, "threads"_a);
}

}  // namespace medusa
