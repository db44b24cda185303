#include "probes/product_timing.h"

#include <random>

#include "base/common.h"
#include "ggml-cpp.h"
#include "llama/backend.h"
#include "probes/placement.h"

namespace medusa {
namespace {

std::vector<float> random_columns(size_t count) {
    std::mt19937 random(0);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

}  // namespace

ProductTimes time_products(const LlamaModel& model, const std::string& type, int columns, int repeats, int threads) {
    if (columns < 1 || repeats < 1) throw Error("timing: columns and repeats must be positive");
    const std::vector<ggml_tensor*> matrices = matrices_of(model, type);
    if (matrices.empty()) throw Error("no " + type + " matrices on the CPU in " + model.path());
    const ggml_backend_ptr backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    if (!backend) throw Error("cannot start the CPU backend");
    set_threads(backend.get(), threads);

    ProductTimes out;
    const size_t tensors = 2 * matrices.size();
    const ggml_context_ptr context(
        ggml_init({tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(tensors, false), nullptr, true}));
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), tensors, false);
    std::vector<ggml_tensor*> inputs;
    for (ggml_tensor* matrix : matrices) {
        ggml_tensor* input = nullptr;  // matrices of the same width share their columns
        for (ggml_tensor* known : inputs) {
            if (known->ne[0] == matrix->ne[0]) input = known;
        }
        if (!input) {
            input = inputs.emplace_back(ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, matrix->ne[0], columns));
            ggml_set_input(input);
        }
        ggml_build_forward_expand(graph, ggml_mul_mat(context.get(), matrix, input));
        out.bytes += ggml_nbytes(matrix);
        out.products += static_cast<uint64_t>(ggml_nelements(matrix));
    }
    const ggml_gallocr_ptr allocator(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend.get())));
    if (!ggml_gallocr_alloc_graph(allocator.get(), graph)) throw Error("no memory to time " + type + " products");
    for (ggml_tensor* input : inputs) {
        const auto values = random_columns(static_cast<size_t>(ggml_nelements(input)));
        ggml_backend_tensor_set(input, values.data(), 0, ggml_nbytes(input));
    }
    for (int i = 0; i <= repeats; ++i) {
        Stopwatch watch;
        if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS)
            throw Error("timing products failed");
        if (i > 0) out.ms.push_back(watch.lap());
    }
    return out;
}

}  // namespace medusa
