// Products for counting instructions: nothing else runs between them.
#include <algorithm>

#include "kernels/product.h"
#include "lab/lab.h"

namespace medusa::lab {

void multiply_once(const Options& options) {
    auto all = chosen_kernels(options);
    all.erase(all.begin());  // the reference
    const int widest = *std::max_element(options.widths.begin(), options.widths.end());
    std::mt19937 random(8);
    std::normal_distribution<float> normal;
    for (const kernels::Format* format : chosen_formats(options)) {
        const size_t stride = kernels::column_bytes(*format, options.columns);
        std::vector<uint8_t> activations(stride * static_cast<size_t>(widest));
        std::vector<float> x(static_cast<size_t>(options.columns));
        for (int c = 0; c < widest; ++c) {
            for (float& v : x) v = normal(random);
            kernels::prepare(kernels::scalar, *format, x.data(), options.columns, &activations[stride * c]);
        }
        const auto weights = random_weights(*format, options.rows, options.columns, true, random);
        std::vector<uint8_t> packed(kernels::packed_bytes(*format, options.columns, options.rows));
        std::vector<float> result(static_cast<size_t>(widest * options.rows));
        const int64_t groups = kernels::groups_of(options.rows);
        kernels::pack(*format, weights.data(), packed.data(), options.columns, options.rows, 0, groups);
        for (const kernels::Kernels* one : all) {
            for (const int n : options.widths) {
                kernels::multiply(*one, *format, packed.data(), options.columns, options.rows, 0, groups,
                                  activations.data(), stride, n, result.data(), static_cast<size_t>(options.rows));
            }
        }
    }
}

}  // namespace medusa::lab
