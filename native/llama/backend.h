// libllama as a library: its start, its log, its types.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ggml-backend.h"

namespace medusa {

std::string libllama_version();
// The files of libllama, ggml and ggml-base that are in use; "" where the platform does not tell.
std::vector<std::string> library_files();

// Takes over libllama's log (its errors become parts of our messages) and starts its backends. Cheap to repeat.
void initialise_backend();
// Another module of the process did so and has the log: this only takes over the kernels it has chosen.
void backend_is_initialised();

// Whether ggml's AMX kernels could not be removed, as in a build that does not export what that takes: models are then
// loaded without any of ggml's own buffers. Needs a CPU backend.
bool keeps_amx_buffers();

// Whether what libllama says also goes to whoever read its log before us, on the thread that says it.
void forward_log(bool wanted);

// Adds the devices of a ggml backend built as a module from the sources of the loaded libllama. Call it before the
// first model is loaded, which settles the devices. Throws Error where it cannot be loaded.
void load_backend(const std::string& path);

// The newest error in libllama's log since the last initialise_backend(), as " (what it said)"; empty if there is none.
std::string log_reason();
// The same for the newest error about an allocation; empty if there is none.
std::string allocation_reason();
// What to do where `device` has no memory left; nullptr: the processor. With slots for options.
const char* memory_remedy(ggml_backend_dev_t device);

// For a backend's computations from now on; has no effect on a device.
void set_threads(ggml_backend_t backend, int threads);

// ggml type by its name ("f16", "q8_0"); Error for an unknown name.
ggml_type type_by_name(const std::string& name);

// Quantization of whole base models through libllama, its mixed recipes included.

// Called before each tensor, counted from 1.
using OnQuantized = std::function<void(int tensor, int tensors)>;

struct QuantizeParams {
    int file_type = 0;  // llama_ftype, GGUF's general.file_type
    int threads = 1;
    bool allow_requantize = false;
    bool pure = false;  // every matrix in the file type's own type, where its rows fill whole blocks
};

// Writes `target`, the base model of `source` in another file type. Cannot be interrupted. Throws Error with libllama's
// reason.
void quantize_model(const std::string& source, const std::string& target, const QuantizeParams& params,
                    const OnQuantized& on_tensor);

}  // namespace medusa
