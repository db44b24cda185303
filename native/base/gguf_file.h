// GGUF headers, read with ggml's own reader and checked against the file's size.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"
#include "ggml.h"
#include "gguf.h"

namespace medusa {

// First tensor of a single file: the base model's own complete GGUF header (docs/design.md, GGUF layout).
inline constexpr const char* base_header_tensor = "medusa.base_header";

struct FileCloser {
    void operator()(std::FILE* file) const {
        if (file) std::fclose(file);
    }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

// Opens for binary reading; the path is UTF-8. Throws Error on failure.
File open_file(const std::string& path);
// 64-bit seek; throws Error when it fails.
void seek_file(std::FILE* file, uint64_t offset, const std::string& path);

// Whether ggml computes with weights of this type. Not integers, doubles or quantized activations.
bool is_weight_type(ggml_type type);

struct TensorInfo {
    std::string name;
    ggml_type type;
    int64_t ne[GGML_MAX_DIMS];
    int n_dims;
    uint64_t offset;  // absolute, in the file
    uint64_t size;    // bytes
    size_t part;      // in a split model, from 0: which file
};

// A file, or all parts of a split model (NAME-00001-of-00005.gguf, ...); the first part has the metadata.
class GgufFile {
  public:
    // Throws Error for a missing file or part, a later part of a split model, a directory, anything other than GGUF,
    // keys or tensor names that are not UTF-8, or tensors outside the file.
    explicit GgufFile(const std::string& path);

    const std::string& path() const { return path_; }
    uint64_t file_size() const { return file_size_; }  // of all parts together
    size_t part_count() const { return files_.size(); }
    const gguf_context* header() const { return header_.get(); }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }
    const TensorInfo* find(const std::string& name) const;
    // The blob at which to open the base model; nullptr if this is not a single file.
    const TensorInfo* base_header() const;

    // Metadata of the expected type; nullopt if the key is absent. Throws Error if it has another type or is a string
    // that is not UTF-8.
    std::optional<std::string> get_string(const char* key) const;
    std::optional<uint32_t> get_u32(const char* key) const { return get(key, GGUF_TYPE_UINT32, gguf_get_val_u32); }
    std::optional<bool> get_bool(const char* key) const { return get(key, GGUF_TYPE_BOOL, gguf_get_val_bool); }
    std::optional<float> get_f32(const char* key) const { return get(key, GGUF_TYPE_FLOAT32, gguf_get_val_f32); }
    // Empty if the key is absent.
    std::vector<float> get_f32_array(const char* key) const { return get_array<float>(key, GGUF_TYPE_FLOAT32); }
    std::vector<int32_t> get_i32_array(const char* key) const { return get_array<int32_t>(key, GGUF_TYPE_INT32); }

    // Reads bytes [begin, begin + size) of a tensor's data.
    void read(const TensorInfo& tensor, uint64_t begin, uint64_t size, void* out) const;

  private:
    struct HeaderFree {
        void operator()(gguf_context* context) const { gguf_free(context); }
    };
    using Header = std::unique_ptr<gguf_context, HeaderFree>;
    // Opens one part and adds its tensors.
    Header add_part(const std::string& path);
    // The other parts of a split model, if this is one.
    void add_other_parts();
    uint16_t split_key(const char* key) const;
    // Throws Error if `text`, the file's `what`, is not UTF-8.
    void check_text(const std::string& what, std::string_view text) const;
    int64_t find_key(const char* key, gguf_type type) const;
    template <typename Value>
    std::optional<Value> get(const char* key, gguf_type type, Value (*value_of)(const gguf_context*, int64_t)) const {
        const int64_t id = find_key(key, type);
        if (id < 0) return std::nullopt;
        return value_of(header_.get(), id);
    }
    template <typename Value>
    std::vector<Value> get_array(const char* key, gguf_type type) const {
        const int64_t id = find_key(key, GGUF_TYPE_ARRAY);
        if (id < 0) return {};
        const gguf_type found = gguf_get_arr_type(header_.get(), id);
        if (found != type) throw Error(path_ + ": " + key + " is not " + gguf_type_name(type) + "[]");
        const auto* data = static_cast<const Value*>(gguf_get_arr_data(header_.get(), id));
        return {data, data + gguf_get_arr_n(header_.get(), id)};
    }

    std::string path_;
    uint64_t file_size_ = 0;
    std::vector<File> files_;
    Header header_;
    std::vector<TensorInfo> tensors_;
};

}  // namespace medusa
