// libllama as a library: its start, its log, its types.
#pragma once

#include <functional>
#include <string>

#include "ggml-backend.h"

namespace medusa {

std::string libllama_version();

// Takes libllama's log over (its errors become parts of our messages) and starts its backends. Cheap to repeat.
void initialise_backend();
// By another module of the process, which has the log: here the kernels it has chosen are taken over, no more.
void backend_is_initialised();

// Whether what libllama says also goes to whoever read its log before us, in the thread that says it.
void forward_log(bool wanted);

// Adds the devices of a ggml backend that was built as a module, from the sources of the libllama that is loaded.
// Before the first model is loaded, which settles the devices. Error where it cannot be loaded.
void load_backend(const std::string& path);

// The newest error in libllama's log since the last initialise_backend(), as " (what it said)"; empty when there is
// none.
std::string log_reason();
// The same of the newest one about an allocation; empty when there is none.
std::string allocation_reason();

// Of a backend's computations from here on; nothing to a device.
void set_threads(ggml_backend_t backend, int threads);

// ggml type by its name ("f16", "q8_0"); Error for an unknown name.
ggml_type type_by_name(const std::string& name);

// Quantization of whole base models through libllama, its mixed recipes included.

// Told before each tensor, counted from 1.
using OnQuantized = std::function<void(int tensor, int tensors)>;

struct QuantizeParams {
    int file_type = 0;  // llama_ftype, GGUF's general.file_type
    int threads = 1;
    bool allow_requantize = false;
    bool pure = false;  // every matrix in the file type's own type, where its rows fill the blocks
};

// Writes `target`, the base model of `source` in another file type. Not interruptible. Throws Error with libllama's
// reason.
void quantize_model(const std::string& source, const std::string& target, const QuantizeParams& params,
                    const OnQuantized& on_tensor);

}  // namespace medusa
