#include "llama/backend.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/common.h"
#include "base/gguf_file.h"
#include "base/platform.h"
#include "kernels/buffer_type.h"
#include "kernels/cleared_buffers.h"
#include "kernels/ggml_internals.h"

namespace medusa {
namespace {

// libllama explains failures in its log only; the newest error line becomes part of our message.
std::mutex log_mutex;
std::string last_log_error, last_allocation_error, last_device_error;
thread_local std::function<void(const char*)> log_reader;

std::once_flag once;  // initialise_backend()

// Whoever read libllama's log before us.
struct {
    ggml_log_callback read = nullptr;
    void* data = nullptr;
} other_reader;
std::atomic<bool> forwards_log = false;

void on_log(ggml_log_level level, const char* text, void*) {
    if (log_reader) log_reader(text);
    static const bool verbose = [] {
        const char* value = std::getenv("MEDUSA_DEBUG");
        return value && std::string(value) == "1";
    }();
    if (verbose) std::fputs(text, stderr);
    if (forwards_log && other_reader.read) other_reader.read(level, text, other_reader.data);
    if (level != GGML_LOG_LEVEL_ERROR) return;
    const std::lock_guard lock(log_mutex);
    // The last line of a load that failed says no more than that; the one before it says why.
    if (!last_log_error.empty() && std::string_view(text).find("failed to load model") != std::string_view::npos)
        return;
    last_log_error = text;
    while (!last_log_error.empty() && last_log_error.back() == '\n') last_log_error.pop_back();
    // How libllama words it: "unable to allocate CUDA0 buffer", "std::bad_alloc"; the last for a thread.
    for (const char* word : {"allocat", "bad_alloc", "Resource temporarily unavailable"}) {
        if (last_log_error.find(word) != std::string::npos) last_allocation_error = last_log_error;
    }
    // "CUDA error: out of memory"; the lines after it say where in ggml.
    if (last_log_error.find(" error: ") != std::string::npos) last_device_error = last_log_error;
}

// What an assertion of ggml's says about the reason. device: the last error of a device, if any.
const char* cause_of(std::string_view assertion, const std::string& device) {
    if (!device.empty()) return device.c_str();
    for (const char* word : {"mem_buffer", "failed to allocate"}) {
        if (assertion.find(word) != std::string_view::npos) return "no memory is left: close other programs";
    }
    return "the model file is damaged or not supported, or a device failed";
}

// ggml asserts on some damaged files, without memory, and CUDA on every device failure. Prints one line instead of a
// stack trace; the process ends either way. Takes no memory.
void on_abort(const char* message) {
    // Unlocked: whoever holds the lock may never get to release it.
    const char* cause = cause_of(message, last_device_error);
    const char* in_ggml = std::strstr(message, "/ggml/src/");  // after where the library was built
    std::fprintf(stderr, "medusa: ggml stopped (%s): %s\n", in_ggml ? in_ggml + 1 : message, cause);
    std::_Exit(1);
}

// Our kernels in, ggml's AMX out: it crashes when built by GCC, whose intrinsic for LDTILECFG declares 8 of the 64
// bytes it reads, so that the rest of the tile configuration is optimised away (seen with GCC 12). The AVX-512 kernels
// take over. A model loaded earlier may lie in AMX's buffers; then everything stays as it is.
void register_kernels() {
    if (!cpu_backend()) return;
    auto& types = cpu_backend()->extra_buffer_types();
    const auto before = types;
    std::erase_if(types, [](auto type) { return std::string(ggml_backend_buft_name(type)) == "AMX"; });
    if (kernels::status().late) types = before;
}

// Builds of llama.cpp whose backends are modules load none by themselves. The modules lie beside its libraries, or
// where llama-cpp-python installs them.
void load_backend_modules() {
    const std::string ggml = library_of(reinterpret_cast<const void*>(&ggml_backend_reg_count));
    const std::string folder = ggml.substr(0, ggml.find_last_of('/') + 1);
    for (const std::string& place : {folder, folder + "../../bin"}) {
        if (ggml_backend_reg_count() == 0 && !folder.empty()) ggml_backend_load_all_from_path(place.c_str());
    }
}

// While it lives, each text that libllama logs on this thread goes to `read`, too.
struct LogReader {
    explicit LogReader(std::function<void(const char*)> read) { log_reader = std::move(read); }
    ~LogReader() { log_reader = nullptr; }
};

}  // namespace

std::string log_reason() {
    const std::lock_guard lock(log_mutex);
    return last_log_error.empty() ? "" : " (" + last_log_error + ")";
}

std::string allocation_reason() {
    const std::lock_guard lock(log_mutex);
    return last_allocation_error.empty() ? "" : " (" + last_allocation_error + ")";
}

const char* memory_remedy(ggml_backend_dev_t device) {
    const bool processor = !device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    return processor ? "close other programs, or choose a smaller quantization" : "lower {n_gpu_layers}";
}

void backend_is_initialised() {
    std::call_once(once, [] { kernels::status(); });
}

void initialise_backend() {
    std::call_once(once, [] {
        llama_log_get(&other_reader.read, &other_reader.data);
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_abort);
        load_backend_modules();
        register_kernels();
        kernels::clear_buffers_lazily();
        llama_backend_init();
        begin_measuring_other_programs();
    });
    const std::lock_guard lock(log_mutex);
    last_log_error.clear();
    last_allocation_error.clear();
    last_device_error.clear();
}

bool keeps_amx_buffers() {
    const auto device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    const auto types = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
    if (!types) return false;
    for (auto type = types(device); type && *type; ++type) {
        if (std::string(ggml_backend_buft_name(*type)) == "AMX") return true;
    }
    return false;
}

void forward_log(bool wanted) {
    forwards_log = wanted;
}

void load_backend(const std::string& path) {
    initialise_backend();
    if (ggml_backend_load(path.c_str())) return;
    throw Error("the backend " + path + " does not load" + log_reason() +
                ": build it from the sources of the installed llama-cpp-python, and see that its libraries are found");
}

std::string libllama_version() {
    return llama_version();
}

std::vector<std::string> library_files() {
    return {library_of(reinterpret_cast<const void*>(&llama_version)),
            library_of(reinterpret_cast<const void*>(&ggml_backend_reg_count)),
            library_of(reinterpret_cast<const void*>(&ggml_version))};
}

ggml_type type_by_name(const std::string& name) {
    for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
        const char* known = ggml_type_name(static_cast<ggml_type>(type));
        if (known && name == known) return static_cast<ggml_type>(type);
    }
    throw Error("unknown type " + name + ": f16, bf16, f32, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl");
}

void set_threads(ggml_backend_t backend, int threads) {
    const auto registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    if (const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"))) {
        set(backend, threads);
    }
}

void quantize_model(const std::string& source, const std::string& target, const QuantizeParams& params,
                    const OnQuantized& on_tensor) {
    initialise_backend();
    auto p = llama_model_quantize_default_params();
    p.nthread = params.threads;
    p.ftype = static_cast<llama_ftype>(params.file_type);
    p.allow_requantize = params.allow_requantize;
    p.pure = params.pure;
    p.max_buf_size = size_t{256} << 20;
    // libllama reports its progress only in the log: "[  12/ 290] blk.0.attn_q.weight ...".
    const LogReader progress([&](const char* text) {
        int tensor = 0, tensors = 0;
        if (on_tensor && std::sscanf(text, "[%d/%d]", &tensor, &tensors) == 2) on_tensor(tensor, tensors);
    });
    const Error unwritten("quantizing " + source + " failed: its output cannot be written, is the device full?");
    if (llama_model_quantize(source.c_str(), target.c_str(), &p)) {
        const std::string reason = log_reason();
        if (reason.find("iostream error") != std::string::npos) throw unwritten;
        throw Error("quantizing " + source + " failed" + reason, "choose another {quant}");
    }
    try {
        GgufFile written(target);  // libllama does not see whether the end of the file could be written
    } catch (const Error&) {
        throw unwritten;
    }
}

}  // namespace medusa
