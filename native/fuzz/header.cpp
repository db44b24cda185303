// A file that claims to be a GGUF: its header, its tensors' places, and values by type.
#include <string>
#include <vector>

#include "base/gguf_file.h"
#include "fuzz/memory_file.h"
#include "fuzz/target.h"

namespace medusa {
namespace {

void read_all(const GgufFile& file) {
    for (const TensorInfo& tensor : file.tensors()) {
        expect(tensor.offset <= file.file_size() && tensor.size <= file.file_size() - tensor.offset,
               "tensors lie in the file");
        expect(file.find(tensor.name) != nullptr, "tensors are found by their names");
        std::vector<char> bytes(static_cast<size_t>(std::min<uint64_t>(tensor.size, 64)));
        file.read(tensor, 0, bytes.size(), bytes.data());
    }
    (void)file.base_header();
    for (int64_t i = 0; i < gguf_get_n_kv(file.header()); ++i) {
        const char* key = gguf_get_key(file.header(), i);
        try {
            file.get_string(key);
            file.get_u32(key);
            file.get_f32_array(key);
            file.get_i32_array(key);
        } catch (const Error& error) {
            expect_one_line(error);
        }
    }
}

}  // namespace
}  // namespace medusa

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace medusa;
    ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    const MemoryFile file(data, size);
    try {
        read_all(GgufFile(file.path()));
    } catch (const Error& error) {
        expect_one_line(error);
    }
    return 0;
}
