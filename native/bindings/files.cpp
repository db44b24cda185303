#include "base/gguf_file.h"
#include "base/platform.h"
#include "bindings/bindings.h"
#include "ggml-backend.h"
#include "kernels/cleared_buffers.h"
#include "llama/backend.h"
#include "llama/model.h"
#include "llama/next_layers.h"

namespace medusa {
namespace {

template <typename T>
nb::object number(const void* data, size_t i) {
    return nb::cast(static_cast<const T*>(data)[i]);
}

nb::object truth(const void* data, size_t i) {
    return nb::bool_(static_cast<const int8_t*>(data)[i] != 0);
}

nb::object scalar(gguf_type type, const void* data, size_t i) {
    // By type. Strings and arrays are not scalars.
    constexpr decltype(&truth) readers[] = {number<uint8_t>,  number<int8_t>,  number<uint16_t>, number<int16_t>,
                                            number<uint32_t>, number<int32_t>, number<float>,    truth,
                                            nullptr,          nullptr,         number<uint64_t>, number<int64_t>,
                                            number<double>};
    static_assert(std::size(readers) == GGUF_TYPE_COUNT && GGUF_TYPE_BOOL == 7 && GGUF_TYPE_UINT64 == 10);
    return readers[type] ? readers[type](data, i) : nb::none();
}

Value value(const gguf_context* header, int64_t id) {
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

Facts metadata(const GgufFile& file) {
    nb::dict out;
    for (int64_t id = 0; id < gguf_get_n_kv(file.header()); ++id) {
        out[text(gguf_get_key(file.header(), id))] = value(file.header(), id);
    }
    return out;
}

// Reads a single key: turning a vocabulary into a list takes a while.
Value value_of(const GgufFile& file, const std::string& key) {
    const int64_t id = gguf_find_key(file.header(), key.c_str());
    return id < 0 ? Value(nb::none()) : value(file.header(), id);
}

Facts system_info() {
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

nb::typed<nb::tuple, int, nb::ellipsis> shape(const TensorInfo& info) {
    nb::list out;
    for (int i = 0; i < info.n_dims; ++i) out.append(info.ne[i]);
    return nb::tuple(out);
}

}  // namespace

void bind_files(nb::module_& m) {
    nb::class_<TensorInfo>(m, "GgufTensor")
        .def_ro("name", &TensorInfo::name)
        .def_prop_ro(
            "type", [](const TensorInfo& t) { return ggml_type_name(t.type); },
            "ggml type name as ggml prints it: \"q4_1\", \"q4_K\", \"f16\", \"i8\".")
        .def_prop_ro("shape", &shape, "ggml order: the contiguous dimension first.")
        .def_ro("offset", &TensorInfo::offset, "Absolute byte offset in the file.")
        .def_ro("nbytes", &TensorInfo::size);
    nb::class_<GgufFile>(m, "GgufFile")
        .def_prop_ro("path", &GgufFile::path)
        .def_prop_ro("file_size", &GgufFile::file_size, "Of all parts together.")
        .def_prop_ro("part_count", &GgufFile::part_count, "Of a split model, given by its first part; else 1.")
        .def_prop_ro("metadata", &metadata,
                     "All key-values in file order; arrays are lists. Built anew each time it is read.")
        .def("get", &value_of, "key"_a, "The value of one key of the metadata; None without it.")
        .def_prop_ro("tensors", &GgufFile::tensors, nb::rv_policy::copy)
        .def_prop_ro("next_layers", &next_layer_count,
                     "How many of its layers are for further tokens (MTP), as it says itself; 0: none.")
        .def_prop_ro("next_layers_alone", &has_next_layers_alone,
                     "It has no other layers: it drafts for a model in another file.")
        .def_prop_ro(
            "embeds",
            [](const GgufFile& file) {
                const Pooling pooling = pooling_of(file);
                return pooling != Pooling::none && pooling != Pooling::rank;
            },
            "It is a model for embeddings.")
        .def("check_next_layers", &check_next_layers, "NativeError, one line, unless llama.cpp can run these layers.");
    m.def(
        "read_gguf", [](const std::string& path) { return new GgufFile(path); }, "path"_a,
        "Reads and checks a GGUF header; every tensor is checked to lie inside the file. No model is loaded.\n\n"
        "Of a split model the first part is given; the tensors are those of all parts.");
    m.def("libllama_version", &libllama_version, "Version text of the libllama that is loaded in this process.");
    m.def("ggml_version", &ggml_version,
          "Version text of the ggml that is loaded; GGML_VERSION: of the one it must be.");
    m.def("library_files", &library_files,
          "The files of libllama, ggml and ggml-base in use; \"\" where it is not known.");
    m.def("system_info", &system_info,
          "{\"devices\": [{\"name\", \"backend\", \"description\", \"type\", \"memory_total\", \"memory_free\"}],\n"
          "\"cpu_features\": [...]}.\n\n"
          "type: \"cpu\", \"gpu\", \"igpu\" or \"accel\". Memory in bytes; zeros where a device does not tell.");
    m.def("load_backend", &load_backend, "path"_a,
          "Adds the devices of a ggml backend that was built as a module. Before the first model is loaded.\n\n"
          "NativeError where it does not load. medusa_cli.native does this for the module that GGML_BACKEND_PATH\n"
          "names.");
    m.def("physical_cores", &physical_cores,
          "Cores that this process may run on, hyper-threads counted once; what n_threads=0 means at most.");
    m.def(
        "buffers_are_lazy", &kernels::buffers_are_lazy,
        "Whether a cache takes memory only where it is written; elsewhere all of it at once. GPUs always take it all.");
    m.def(
        "thread_advice",
        [] {
            const ThreadAdvice advice = advise_threads(physical_cores());
            return std::pair(advice.threads, advice.others);
        },
        "With how many threads an answer would begin, and how many cores other programs use (None: not known).");
}

}  // namespace medusa
