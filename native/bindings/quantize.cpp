#include "base/quantize.h"
#include "llama/backend.h"

#include "bindings/bindings.h"
#include "bindings/ndarray.h"

namespace medusa {
namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void run_quantize_model(const std::string& source, const std::string& target, int file_type, int n_threads,
                        bool allow_requantize, bool pure, const Callback<void(int, int)>& on_tensor) {
    const QuantizeParams params{file_type, resolve_threads(n_threads).most, allow_requantize, pure};
    Callbacks call;
    OnQuantized progress;
    if (!on_tensor.is_none()) {
        progress = [&](int tensor, int tensors) {
            call([&] {
                on_tensor(tensor, tensors);
                return nb::none();
            });
        };
    }
    {
        const nb::gil_scoped_release released;
        quantize_model(source, target, params, progress);
    }
    call.rethrow();
}

nb::bytes run_quantize_rows(const std::string& type, const Matrix& values) {
    const auto out = quantize_rows(type, {values.data(), values.size()}, static_cast<int64_t>(values.shape(1)));
    return nb::bytes(out.data(), out.size());
}

constexpr const char* quantize_model_doc =
    "Writes the base model `source` as `target` in another file type (GGUF's general.file_type, libllama's\n"
    "recipes).\n\n"
    "pure: all matrices in one type, not the recipe's mix; llama.cpp chooses another where rows do not fill the\n"
    "blocks. Cannot be interrupted. on_tensor(number, count): before each tensor.";

}  // namespace

void bind_quantize(nb::module_& m) {
    m.def("quantize_model", &run_quantize_model, "source"_a, "target"_a, nb::kw_only(), "file_type"_a,
          "n_threads"_a = 0, "allow_requantize"_a = false, "pure"_a = false, "on_tensor"_a = nb::none(),
          quantize_model_doc);
    m.def("quantize_rows", &run_quantize_rows, "type"_a, "values"_a,
          "values [rows, columns] as the bytes of a ggml type (\"f16\", \"q8_0\", \"q4_k\", ...).");
}

}  // namespace medusa
