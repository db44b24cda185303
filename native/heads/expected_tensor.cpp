#include "heads/expected_tensor.h"

#include <algorithm>

#include "base/common.h"

namespace medusa {
namespace {

std::string shape_text(const int64_t* ne, size_t dims) {
    std::string out = "[";
    for (size_t i = 0; i < dims; ++i) out += (i ? ", " : "") + std::to_string(ne[i]);
    return out + "]";
}

}  // namespace

const TensorInfo& expect_tensor(const GgufFile& file, const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo* info = file.find(name);
    if (!info) throw Error(file.path() + ": tensor " + name + " is missing: convert the heads again");
    std::vector<int64_t> wanted = shape;
    wanted.resize(GGML_MAX_DIMS, 1);
    if (!std::equal(wanted.begin(), wanted.end(), info->ne)) {
        throw Error(file.path() + ": tensor " + name + " has shape " +
                    shape_text(info->ne, std::max<size_t>(shape.size(), info->n_dims)) + ", this base needs " +
                    shape_text(wanted.data(), shape.size()) + ": these heads are for another base");
    }
    const ggml_type type = info->type;
    const bool is_vector = shape.size() == 1;
    if (is_vector ? type != GGML_TYPE_F32 : !is_weight_type(type)) {
        throw Error(file.path() + ": tensor " + name + " has type " + ggml_type_name(type) + ", it must be " +
                    (is_vector ? "f32" : "a float or quantized type") + ": convert the heads again");
    }
    return *info;
}

}  // namespace medusa
