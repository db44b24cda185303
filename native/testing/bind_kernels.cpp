#include <cstring>

#include "base/common.h"
#include "base/quantize.h"
#include "kernels/attention.h"
#include "kernels/buffer_type.h"
#include "kernels/format.h"
#include "kernels/product.h"
#include "llama/backend.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

using kernels::Kernels;
template <typename T>
using Tensor3 = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using HalfMatrix = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const Kernels& kernels_named(const std::string& name) {
    for (const Kernels* one : kernels::supported_kernels()) {
        if (name == one->name) return *one;
    }
    throw Error("no kernels '" + name + "' on this processor");
}

// ggml spells its names "q4_0", but "q4_K".
ggml_type type_named(std::string name) {
    if (name.ends_with("_k")) name.back() = 'K';
    return type_by_name(name);
}

NewMatrix<float> dequantize_rows(const std::string& type_name, const nb::bytes& data, int64_t columns) {
    const ggml_type type = type_named(type_name);
    std::vector<float> out(data.size() / ggml_row_size(type, columns) * static_cast<size_t>(columns));
    if (!out.empty()) to_floats(type, data.data(), out);
    return new_matrix<float>(out.data(), out.size() / static_cast<size_t>(columns), static_cast<size_t>(columns));
}

// Memory between guard bytes that nobody may touch.
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

NewMatrix<float> kernel_product(const std::string& isa, const std::string& type_name, const nb::bytes& weights,
                                int64_t columns, const Matrix& x) {
    const Kernels& chosen = kernels_named(isa);
    const kernels::Format* format = kernels::format_of(type_named(type_name));
    if (!format) throw Error("no kernel for type '" + type_name + "'");
    if (columns != static_cast<int64_t>(x.shape(1))) throw Error("weights and x differ in columns");
    const size_t row_bytes = ggml_row_size(format->type, columns);
    const auto rows = static_cast<int64_t>(weights.size() / row_bytes);
    if (!kernels::fits(*format, columns)) throw Error("the matrix does not fill whole blocks");
    const auto n = static_cast<int>(x.shape(0));
    const size_t stride = kernels::column_bytes(*format, columns);
    Guarded packed(kernels::packed_bytes(*format, columns, rows)), activations(stride * n),
        result(sizeof(float) * n * rows);
    kernels::pack(*format, weights.c_str(), packed.data(), columns, rows, 0, kernels::groups_of(rows));
    for (int c = 0; c < n; ++c) {
        kernels::prepare(chosen, *format, x.data() + c * columns, columns, activations.data() + c * stride);
    }
    kernels::multiply(chosen, *format, packed.data(), columns, rows, 0, kernels::groups_of(rows), activations.data(),
                      stride, n, reinterpret_cast<float*>(result.data()), static_cast<size_t>(rows));
    if (!packed.intact() || !activations.intact() || !result.intact()) throw Error("a kernel wrote outside its buffer");
    return new_matrix<float>(reinterpret_cast<const float*>(result.data()), static_cast<size_t>(n),
                             static_cast<size_t>(rows));
}

kernels::CellType cell_type_of(const std::string& name) {
    if (const auto type = kernels::cell_type(name)) return *type;
    throw Error("no cache of type '" + name + "'");
}

// A cache [cells, key heads, bytes per head].
struct Cache {
    Tensor3<uint8_t> bytes;
    kernels::CellType type;

    int64_t size() const {
        const auto n = static_cast<int64_t>(bytes.shape(2));
        if (type == kernels::CellType::f16) return n / 2;
        return n / static_cast<int64_t>(kernels::block_bytes(type)) * kernels::quantized_block;
    }
    const char* data() const { return reinterpret_cast<const char*>(bytes.data()); }
};

// The threads take turns: with `shares_cells` in each phase, otherwise with rows of their own, `batch` at a time.
NewMatrix<float> kernel_attention(const std::string& isa, const Tensor3<float>& q, const Tensor3<uint8_t>& k,
                                  const Tensor3<uint8_t>& v, const std::string& key_type, const std::string& value_type,
                                  const HalfMatrix& mask, const Vector& sinks, float scale, float cap, int threads,
                                  bool shares_cells, int64_t batch) {
    const Kernels& chosen = kernels_named(isa);
    if (!chosen.attend) throw Error("no attention kernel");
    const Cache keys{k, cell_type_of(key_type)}, values{v, cell_type_of(value_type)};
    kernels::Attention a{};
    a.tokens = q.shape(0), a.heads = q.shape(1), a.key_size = q.shape(2);
    a.cells = k.shape(0), a.key_heads = k.shape(1), a.value_size = values.size();
    a.key_type = keys.type, a.value_type = values.type;
    a.q = reinterpret_cast<const char*>(q.data()), a.q_head = a.key_size * 4, a.q_token = a.heads * a.q_head;
    a.k = keys.data(), a.k_head = cell_bytes(a.key_type, a.key_size), a.k_cell = a.key_heads * a.k_head;
    a.v = values.data(), a.v_head = cell_bytes(a.value_type, a.value_size), a.v_cell = a.key_heads * a.v_head;
    a.mask = reinterpret_cast<const char*>(mask.data()), a.mask_token = a.cells * 2;
    a.sinks = sinks.shape(0) > 0 ? sinks.data() : nullptr;
    a.scale = scale, a.cap = cap;
    if (!kernels::attention_fits(a.key_type, a.key_size) || !kernels::attention_fits(a.value_type, a.value_size) ||
        keys.size() != a.key_size || a.cells % kernels::attention_lanes != 0) {
        throw Error("sizes that the kernel does not take");
    }
    Guarded out(sizeof(float) * a.rows() * a.value_size);
    a.out = reinterpret_cast<float*>(out.data());
    const auto attend = [&](int64_t first, int64_t last, int parts) {
        for (int64_t begin = first, end; begin < last; begin = end) {
            end = std::min(batch > 0 ? begin + batch : kernels::attention_batch_end(a, begin), last);
            Guarded scratch(kernels::attention_scratch(a, end - begin, parts));
            for (int phase = 0; phase < kernels::attention_phases; ++phase) {
                for (int part = 0; part < parts; ++part) {
                    chosen.attend(a, {begin, end, part, parts, scratch.data()}, phase);
                }
            }
            if (!scratch.intact() || !out.intact()) throw Error("a kernel wrote outside its buffer");
        }
    };
    if (shares_cells) {
        attend(0, a.rows(), threads);
    } else {
        for (int i = 0; i < threads; ++i) attend(a.rows() * i / threads, a.rows() * (i + 1) / threads, 1);
    }
    return new_matrix<float>(a.out, a.tokens, a.heads * a.value_size);
}

constexpr const char* kernel_attention_doc =
    "q [tokens, heads, size], k and v as the bytes of a cache (\"f16\", \"q8_0\", \"q4_0\") [cells, key heads,\n"
    "bytes], mask [tokens, cells] as half bits, sinks [heads] or [0] -> [tokens, heads * value size]. The threads\n"
    "share out the cells, or the rows, of which `batch` are worked on together; 0: as many as in a model's pass.";

}  // namespace

void bind_kernels(nb::module_& m) {
    m.def(
        "kernel_names",
        [] {
            std::vector<std::string> names;
            for (const Kernels* one : kernels::supported_kernels()) names.emplace_back(one->name);
            return names;
        },
        "Instruction sets of this processor that have kernels, \"scalar\" (the reference) first, the best last.");
    m.def("kernel_types", &kernels::type_names);
    m.def("dequantize_rows", &dequantize_rows, "type"_a, "data"_a, "columns"_a,
          "Inverse of medusa_cli.native.quantize_rows: [rows, columns].");
    m.def("kernel_product", &kernel_product, "isa"_a, "type"_a, "weights"_a, "columns"_a, "x"_a,
          "weights: [rows, columns] as the bytes of a ggml type; x [n, columns] -> [n, rows], between guard bytes.");
    m.def(
        "attention_names",
        [] {
            std::vector<std::string> names;
            for (const Kernels* one : kernels::supported_kernels()) {
                if (one->attend) names.emplace_back(one->name);
            }
            return names;
        },
        "The kernel sets of this processor that have an attention of their own.");
    m.def("kernel_attention", &kernel_attention, "isa"_a, "q"_a, "k"_a, "v"_a, "key_type"_a, "value_type"_a, "mask"_a,
          "sinks"_a, "scale"_a, "cap"_a, "threads"_a, "shares_cells"_a, "batch"_a, kernel_attention_doc);
}

}  // namespace medusa::testing
