#include "base/gguf_file.h"

#include <cstdio>
#include <cstring>
#include <filesystem>

namespace medusa {
namespace {

std::filesystem::path native_path(const std::string& utf8) {
    return std::u8string(utf8.begin(), utf8.end());
}

int dimensions(const int64_t* ne) {
    int n = GGML_MAX_DIMS;
    while (n > 1 && ne[n - 1] == 1) --n;
    return n;
}

}  // namespace

File open_file(const std::string& path) {
    const std::filesystem::path native = native_path(path);
    std::error_code ignored;
    if (std::filesystem::is_directory(native, ignored)) {
        throw Error(path + " is a directory: give the .gguf file inside it");
    }
    if (!std::filesystem::exists(native, ignored)) throw Error(path + " does not exist: check the path");
#ifdef _WIN32
    File file(_wfopen(native.c_str(), L"rb"));
#else
    File file(std::fopen(native.c_str(), "rb"));
#endif
    if (!file) throw Error("cannot open " + path + " (" + std::strerror(errno) + "): check its permissions");
    return file;
}

void seek_file(std::FILE* file, uint64_t offset, const std::string& path) {
#ifdef _WIN32
    const int failed = _fseeki64(file, static_cast<int64_t>(offset), SEEK_SET);
#else
    const int failed = fseeko(file, static_cast<off_t>(offset), SEEK_SET);
#endif
    if (failed) throw Error("cannot seek in " + path);
}

bool is_weight_type(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32:
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16:
            return true;
        case GGML_TYPE_Q8_1:
        case GGML_TYPE_Q8_K:
            return false;
        default:
            return ggml_is_quantized(type);
    }
}

GgufFile::GgufFile(const std::string& path) : path_(path) {
    header_ = add_part(path);
    for (int64_t i = 0; i < gguf_get_n_kv(header_.get()); ++i)
        check_text("metadata key", gguf_get_key(header_.get(), i));
    add_other_parts();
}

GgufFile::Header GgufFile::add_part(const std::string& path) {
    File file = open_file(path);
    const uint64_t file_size = std::filesystem::file_size(native_path(path));
    char magic[4] = {};
    if (std::fread(magic, 1, 4, file.get()) != 4 || std::memcmp(magic, GGUF_MAGIC, 4) != 0) {
        throw Error(path + " is not a GGUF file: give a model in GGUF format");
    }
    std::rewind(file.get());
    Header header(gguf_init_from_file_ptr(file.get(), {/*no_alloc=*/true, /*ctx=*/nullptr}));
    if (!header) throw Error(path + " has a damaged or truncated GGUF header: download it again");
    const uint64_t data_offset = gguf_get_data_offset(header.get());
    for (int64_t i = 0; i < gguf_get_n_tensors(header.get()); ++i) {
        TensorInfo info{};
        info.name = gguf_get_tensor_name(header.get(), i);
        check_text("tensor name", info.name);
        info.type = gguf_get_tensor_type(header.get(), i);
        std::memcpy(info.ne, gguf_get_tensor_ne(header.get(), i), sizeof(info.ne));
        info.n_dims = dimensions(info.ne);
        info.offset = data_offset + gguf_get_tensor_offset(header.get(), i);
        info.size = gguf_get_tensor_size(header.get(), i);
        info.part = files_.size();
        if (info.offset < data_offset || info.offset > file_size || info.size > file_size - info.offset) {
            throw Error(path + " is truncated: tensor " + info.name + " ends beyond the file's " +
                        std::to_string(file_size) + " bytes: download it again");
        }
        tensors_.push_back(std::move(info));
    }
    files_.push_back(std::move(file));
    file_size_ += file_size;
    return header;
}

void GgufFile::add_other_parts() {
    const int count = split_key("split.count");
    if (count < 2) return;
    const auto ending = [&](int part) {
        char text[32];
        std::snprintf(text, sizeof(text), "-%05d-of-%05d.gguf", part, count);
        return std::string(text);
    };
    const std::string first = ending(1);
    if (split_key("split.no") != 0) {
        throw Error(path_ + " is part " + std::to_string(split_key("split.no") + 1) + " of a split model: give the " +
                    "first, whose name ends in " + first);
    }
    if (!path_.ends_with(first)) {
        throw Error(path_ + " is the first of " + std::to_string(count) + " parts: its name must end in " + first);
    }
    const std::string stem = path_.substr(0, path_.size() - first.size());
    for (int part = 2; part <= count; ++part) {
        const std::string path = stem + ending(part);
        if (std::error_code ignored; !std::filesystem::exists(native_path(path), ignored)) {
            throw Error(path + " is missing: a split model needs all its parts in one folder");
        }
        add_part(path);
    }
}

uint16_t GgufFile::split_key(const char* key) const {
    return get(key, GGUF_TYPE_UINT16, gguf_get_val_u16).value_or(0);
}

void GgufFile::check_text(const std::string& what, std::string_view text) const {
    if (is_utf8(text)) return;
    throw Error(path_ + ": " + what + " '" + std::string(text) +
                "' is not UTF-8: the file is damaged, download it again");
}

const TensorInfo* GgufFile::find(const std::string& name) const {
    for (const TensorInfo& info : tensors_) {
        if (info.name == name) return &info;
    }
    return nullptr;
}

const TensorInfo* GgufFile::base_header() const {
    if (tensors_.empty() || tensors_.front().name != base_header_tensor) return nullptr;
    if (tensors_.front().type != GGML_TYPE_I8) throw Error(path_ + ": medusa.base_header is not I8: convert it again");
    return &tensors_.front();
}

int64_t GgufFile::find_key(const char* key, gguf_type type) const {
    const int64_t id = gguf_find_key(header_.get(), key);
    if (id >= 0 && gguf_get_kv_type(header_.get(), id) != type) {
        throw Error(path_ + ": metadata " + key + " has type " + gguf_type_name(gguf_get_kv_type(header_.get(), id)) +
                    ", not " + gguf_type_name(type) + ": convert the heads again");
    }
    return id;
}

std::optional<std::string> GgufFile::get_string(const char* key) const {
    const int64_t id = find_key(key, GGUF_TYPE_STRING);
    if (id < 0) return std::nullopt;
    const char* text = gguf_get_val_str(header_.get(), id);
    check_text("metadata " + std::string(key), text);
    return text;
}

void GgufFile::read(const TensorInfo& tensor, uint64_t begin, uint64_t size, void* out) const {
    if (begin > tensor.size || size > tensor.size - begin) throw Error(path_ + ": read beyond tensor " + tensor.name);
    std::FILE* file = files_.at(tensor.part).get();
    seek_file(file, tensor.offset + begin, path_);
    if (std::fread(out, 1, size, file) != size) throw Error("cannot read tensor " + tensor.name + " of " + path_);
}

}  // namespace medusa
