#include "base/gguf_file.h"
#include "base/platform.h"
#include "bindings/bindings.h"
#include "ggml-backend.h"
#include "kernels/cleared_buffers.h"
#include "llama/backend.h"
#include "llama/model.h"

namespace medusa {
namespace {

nb::object scalar(gguf_type type, const void* data, size_t i) {
    const auto at = [&]<typename T>(T) { return static_cast<const T*>(data)[i]; };
    switch (type) {
        case GGUF_TYPE_UINT8:
            return nb::int_(at(uint8_t{}));
        case GGUF_TYPE_INT8:
            return nb::int_(at(int8_t{}));
        case GGUF_TYPE_UINT16:
            return nb::int_(at(uint16_t{}));
        case GGUF_TYPE_INT16:
            return nb::int_(at(int16_t{}));
        case GGUF_TYPE_UINT32:
            return nb::int_(at(uint32_t{}));
        case GGUF_TYPE_INT32:
            return nb::int_(at(int32_t{}));
        case GGUF_TYPE_UINT64:
            return nb::int_(at(uint64_t{}));
        case GGUF_TYPE_INT64:
            return nb::int_(at(int64_t{}));
        case GGUF_TYPE_FLOAT32:
            return nb::float_(at(float{}));
        case GGUF_TYPE_FLOAT64:
            return nb::float_(at(double{}));
        case GGUF_TYPE_BOOL:
            return nb::bool_(at(int8_t{}) != 0);
        default:
            return nb::none();
    }
}

nb::object value(const gguf_context* header, int64_t id) {
    const gguf_type type = gguf_get_kv_type(header, id);
    if (type == GGUF_TYPE_STRING) return text(gguf_get_val_str(header, id));
    if (type != GGUF_TYPE_ARRAY) return scalar(type, gguf_get_val_data(header, id), 0);
    nb::list out;
    const gguf_type element = gguf_get_arr_type(header, id);
    const size_t count = gguf_get_arr_n(header, id);
    for (size_t i = 0; i < count; ++i) {
        if (element == GGUF_TYPE_STRING) {
            out.append(text(gguf_get_arr_str(header, id, i)));
        } else {
            out.append(scalar(element, gguf_get_arr_data(header, id), i));
        }
    }
    return out;
}

nb::dict metadata(const GgufFile& file) {
    nb::dict out;
    for (int64_t id = 0; id < gguf_get_n_kv(file.header()); ++id) {
        out[text(gguf_get_key(file.header(), id))] = value(file.header(), id);
    }
    return out;
}

// Of one key, without the rest: a vocabulary takes a while to become a list.
nb::object value_of(const GgufFile& file, const std::string& key) {
    const int64_t id = gguf_find_key(file.header(), key.c_str());
    return id < 0 ? nb::none() : value(file.header(), id);
}

nb::dict system_info() {
    nb::list devices;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        size_t free_bytes = 0, total = 0;
        ggml_backend_dev_memory(device, &free_bytes, &total);
        const char* types[] = {"cpu", "gpu", "igpu", "accel", "meta"};
        const auto type = static_cast<size_t>(ggml_backend_dev_type(device));
        nb::dict entry;
        entry["name"] = ggml_backend_dev_name(device);
        entry["backend"] = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
        entry["description"] = ggml_backend_dev_description(device);
        entry["type"] = type < std::size(types) ? types[type] : "other";
        entry["memory_total"] = total;
        entry["memory_free"] = free_bytes;
        devices.append(entry);
    }
    nb::list features;
    for (size_t i = 0; i < ggml_backend_reg_count(); ++i) {
        ggml_backend_reg_t registry = ggml_backend_reg_get(i);
        if (std::string(ggml_backend_reg_name(registry)) != "CPU") continue;
        const auto get = reinterpret_cast<ggml_backend_get_features_t>(
            ggml_backend_reg_get_proc_address(registry, "ggml_backend_get_features"));
        if (!get) continue;
        for (const ggml_backend_feature* f = get(registry); f->name; ++f) {
            if (std::string(f->value) != "0") features.append(f->name);
        }
    }
    nb::dict out;
    out["devices"] = devices;
    out["cpu_features"] = features;
    return out;
}

nb::tuple shape(const TensorInfo& info) {
    nb::list out;
    for (int i = 0; i < info.n_dims; ++i) out.append(info.ne[i]);
    return nb::tuple(out);
}

}  // namespace

void bind_files(nb::module_& m) {
    nb::class_<TensorInfo>(m, "GgufTensor")
        .def_ro("name", &TensorInfo::name)
        .def_prop_ro("type", [](const TensorInfo& t) { return ggml_type_name(t.type); })
        .def_prop_ro("shape", &shape)
        .def_ro("offset", &TensorInfo::offset)
        .def_ro("nbytes", &TensorInfo::size);
    nb::class_<GgufFile>(m, "GgufFile")
        .def_prop_ro("path", &GgufFile::path)
        .def_prop_ro("version", [](const GgufFile& f) { return gguf_get_version(f.header()); })
        .def_prop_ro("alignment", [](const GgufFile& f) { return gguf_get_alignment(f.header()); })
        .def_prop_ro("data_offset", [](const GgufFile& f) { return gguf_get_data_offset(f.header()); })
        .def_prop_ro("file_size", &GgufFile::file_size)
        .def_prop_ro("part_count", &GgufFile::part_count)
        .def_prop_ro("metadata", &metadata)
        .def("get", &value_of, "key"_a)
        .def_prop_ro("tensors", &GgufFile::tensors, nb::rv_policy::copy);
    m.def("read_gguf", [](const std::string& path) { return new GgufFile(path); }, "path"_a);
    m.def("libllama_version", &libllama_version);
    m.def("system_info", &system_info);
    m.def("load_backend", &load_backend, "path"_a);
    m.def("physical_cores", &physical_cores);
    m.def("buffers_are_lazy", &kernels::buffers_are_lazy);
    m.def("thread_advice", [] {
        const ThreadAdvice advice = advise_threads(physical_cores());
        return std::pair(advice.threads, advice.others);
    });
}

}  // namespace medusa
