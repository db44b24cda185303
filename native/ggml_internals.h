// Everything we use of libllama and ggml that is not in their installed headers. Valid for llama-cpp-python 0.3.36
// only: the pin is checked when the module is built and when it is loaded (medusa_cli/native.py).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

#if defined(__linux__) || defined(__APPLE__)
#define MEDUSA_HAS_TENSOR_MAP 1
// Name and tensor of every loaded weight. Exported as a C++ symbol on Linux and macOS only.
LLAMA_API const std::vector<std::pair<std::string, ggml_tensor*>>& llama_internal_get_tensor_map(
    const llama_model* model);
#else
#define MEDUSA_HAS_TENSOR_MAP 0
#endif

#if defined(__linux__) && defined(__x86_64__)
#define MEDUSA_HAS_EXTRA_BUFFER_TYPES 1
// Buffer types with kernels of their own (repacked weights), asked in order when weights are placed. The list is read
// once, at the first model load of the process.
std::vector<ggml_backend_buffer_type_t>& ggml_backend_cpu_get_extra_buffer_types() __attribute__((weak));
#else
#define MEDUSA_HAS_EXTRA_BUFFER_TYPES 0
#endif
