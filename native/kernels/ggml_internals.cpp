#include "kernels/ggml_internals.h"

#include <utility>

#if defined(__linux__) || defined(__APPLE__)
#include <dlfcn.h>
#endif

namespace medusa {
namespace {

// Symbols are looked up in the library that holds a function of its public interface: the process may hold a module
// whose symbols nobody else sees, and one that is missing stops nothing from loading.
#if defined(__linux__) || defined(__APPLE__)
void* symbol_beside(const void* function, const char* name) {
    void* library = dlopen(library_of(function).c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return nullptr;
    void* symbol = dlsym(library, name);
    dlclose(library);  // it stays loaded by others
    return symbol;
}
#else
void* symbol_beside(const void*, const char*) {
    return nullptr;
}
#endif

template <typename Function>
void look_up(Function*& out, const void* beside, const char* name) {
    out = reinterpret_cast<Function*>(symbol_beside(beside, name));
}

const CpuBackend* look_up_cpu_backend() {
    static CpuBackend found;
    const auto device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!device) return nullptr;
    const void* own =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
    if (!own) return nullptr;
    look_up(found.extra_buffer_types, own, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
    look_up(found.barrier, own, "ggml_barrier");
    look_up(found.type_traits, own, "ggml_get_type_traits_cpu");
    return found.extra_buffer_types && found.barrier && found.type_traits ? &found : nullptr;
}

// llama_internal_get_tensor_map() returns a std::vector of pairs of a std::string and the tensor. How long the string
// is depends on the C++ library that libllama was built with, which its name tells. The string is skipped: the tensor
// has the name, too.
struct TensorMap {
    const char *begin, *end, *capacity;
};
struct TensorMapGetter {
    const TensorMap& (*get)(const llama_model*) = nullptr;
    size_t string_bytes = 0;
};

TensorMapGetter look_up_tensor_map() {
    static_assert(sizeof(void*) == 8, "the lengths of strings are those of 64-bit systems");
#if defined(__APPLE__)
    constexpr std::pair<const char*, size_t> variants[] = {
        {"_Z29llama_internal_get_tensor_mapPK11llama_model", 24}};  // libc++
#else
    constexpr std::pair<const char*, size_t> variants[] = {
        {"_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model", 32},  // libstdc++
        {"_Z29llama_internal_get_tensor_mapPK11llama_model", 8}};         // its older strings: manylinux2014
#endif
    TensorMapGetter out;
    for (const auto& [name, string_bytes] : variants) {
        out.string_bytes = string_bytes;
        look_up(out.get, reinterpret_cast<const void*>(&llama_version), name);
        if (out.get) break;
    }
    return out;
}

}  // namespace

const CpuBackend* cpu_backend() {
    static const CpuBackend* const found = look_up_cpu_backend();
    return found;
}

std::vector<ggml_tensor*> loaded_tensors(const llama_model* model) {
    static const TensorMapGetter list = look_up_tensor_map();
    std::vector<ggml_tensor*> out;
    if (!list.get) return out;
    const TensorMap& map = list.get(model);
    for (const char* at = map.begin; at != map.end; at += list.string_bytes + sizeof(ggml_tensor*)) {
        out.push_back(*reinterpret_cast<ggml_tensor* const*>(at + list.string_bytes));
    }
    return out;
}

std::string library_of(const void* function) {
#if defined(__linux__) || defined(__APPLE__)
    Dl_info found;
    if (dladdr(function, &found) && found.dli_fname) return found.dli_fname;
#endif
    return "";
}

}  // namespace medusa
